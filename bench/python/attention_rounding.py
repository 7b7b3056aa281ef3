# SPDX-License-Identifier: Apache-2.0
"""The rounding points of BF16 attention, one by one, on the case of arXiv 2510.04212: several keys have a query's
largest score, so that their shares are exactly 1, and all values have one sign.

    python bench/python/attention_rounding.py [steps] [seeds]

Products read BF16 and add in FP32, as on units for BF16, so any CPU can run it. Ways:
- sum: shares times values is rounded before it is divided by the sum of shares, as in the paper;
- result: it is rounded once, after the division, and the backward's products dy y read it rounded (FlashAttention-2);
- comp: as `result`, but the backward reads it in FP32 (comp_host/attention.hpp, comp_libtorch/kernels/attention.hpp).
"""
import sys

import torch


def low(x):
    return x.to(torch.bfloat16).to(x.dtype)


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, way):
        of = (lambda x: x) if way == "fp32" else low
        q, k, v = of(q), of(k), of(v)
        ctx.of, ctx.scale = of, q.shape[-1] ** -0.5
        scores = q @ k.mT * ctx.scale
        shares = torch.exp(scores - scores.amax(-1, keepdim=True))
        total = shares.sum(-1, keepdim=True)
        summed = of(shares) @ v
        unrounded = (low(summed) if way == "sum" else summed) / total
        y = of(unrounded)
        ctx.save_for_backward(q, k, v, unrounded if way == "comp" else y, shares / total)
        return y

    @staticmethod
    def backward(ctx, dy):
        q, k, v, y, p = ctx.saved_tensors
        of, dy = ctx.of, ctx.of(dy)
        ds = of(p * (dy @ v.mT - (dy * y).sum(-1, keepdim=True)) * ctx.scale)
        return of(ds @ k), of(ds.mT @ q), of(of(p).mT @ dy), None


def error_of_the_result(way, seed, tokens=320, width=32, equal=2):
    """Mean signed error in units of y's last place in BF16. Keys come in groups of equal ones."""
    g = torch.Generator().manual_seed(seed)
    k = low(torch.randn(tokens // equal, width, generator=g).repeat_interleave(equal, 0))
    q, v = low(20 * k / width**0.5), low(-1 - torch.rand(tokens, width, generator=g))
    exact = torch.softmax(q.double() @ k.double().T * width**-0.5, -1) @ v.double()
    off = Attention.apply(q, k, v, way).double() - exact
    return (off / 2 ** (exact.abs().log2().floor() - 7)).mean().item()


def train(way, seed, steps, batch=2, tokens=160, width=32, words=50):
    """Losses by steps, and the norm of q's weights. A token wants the mean of what the tokens after its word have."""
    g = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=g)
    words_of, wanted = draw(words, width), draw(width, width) * width**-0.5
    wq, wk = torch.eye(width) * 2 + 0.05 * draw(width, width), torch.eye(width) + 0.05 * draw(width, width)
    weights = [wq, wk, draw(width, width) * width**-0.5, draw(width, width) * width**-0.5, torch.zeros(width)]
    wq, wk, wv, wo, bias = [w.requires_grad_() for w in weights]
    optimizer = torch.optim.AdamW(weights, lr=1e-2, weight_decay=0)
    losses = []
    for _ in range(steps):
        word = torch.randint(words, (batch, tokens), generator=g)
        u = torch.rand(batch, tokens, width, generator=g)
        after = ((word.unsqueeze(2) + 1) % words == word.unsqueeze(1)).float()
        count = after.sum(-1, keepdim=True)
        target = after @ (u @ wanted) / count.clamp(min=1)
        v = -1 - torch.sigmoid(u @ wv)
        y = Attention.apply(words_of[word] @ wq, words_of[(word - 1) % words] @ wk, v, way)
        loss = (((y @ wo + bias - target) * (count > 0)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, torch.linalg.matrix_norm(wq, 2).item()


if __name__ == "__main__":
    steps, seeds = (int(a) for a in (sys.argv[1:] + ["2000", "3"][len(sys.argv) - 1 :])[:2])
    torch.set_num_threads(1)
    print("| way | mean error of y [last places] | loss of the last 100 steps | norm of q's weights |\n|---|---|---|---|")
    for way in ("fp32", "sum", "result", "comp"):
        off = sum(error_of_the_result(way, seed) for seed in range(8)) / 8
        runs = [train(way, seed, steps) for seed in range(seeds)]
        last = ", ".join(f"{sum(losses[-100:]) / len(losses[-100:]):.4f}" for losses, _ in runs)
        print(f"| {way} | {off:+.4f} | {last} | {', '.join(f'{norm:.1f}' for _, norm in runs)} |", flush=True)
