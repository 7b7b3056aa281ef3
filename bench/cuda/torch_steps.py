# SPDX-License-Identifier: Apache-2.0
# The models of steps.cpp in PyTorch, eager, as its tutorials write them: FP32, TF32, and torch.autocast (BF16, or FP16 with a
# GradScaler where the GPU has no BF16), in turns; each step copies its batch from pinned memory, as a loader's would come; fused
# optimizers and measured convolutions, as PyTorch advises.
# Writes JSON after each model; one that fails is named and leaves the others their turn, and the status is 1. Without torch or a
# GPU that it sees the file says why, and the status is 0. --device=cpu runs all of it without a GPU, to see that it runs.
#   torch_steps.py [--small] [--device=cpu] [FILE.json]
import json
import statistics
import sys
import time

try:
    import torch
    from torch import nn
except ImportError as missing:
    torch, why = None, f'no torch in this Python ({missing})'

DEVICE = 'cpu' if '--device=cpu' in sys.argv else 'cuda'


def mlp(small):
    batch, width = (4, 16) if small else (4096, 4096)
    layers = [nn.Flatten(), nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width),
              nn.ReLU(), nn.Linear(width, 10)]
    return nn.Sequential(*layers), (batch, 1, 28, 28), 10, sgd


def lenet5(small):
    batch = 4 if small else 1024
    net = nn.Sequential(nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2),
                        nn.Flatten(), nn.Linear(400, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, 10))
    return net, (batch, 1, 28, 28), 10, sgd


def alexnet(small):
    batch = 4 if small else 1024
    net = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(64, 192, 3, padding=1), nn.ReLU(),
                        nn.MaxPool2d(2), nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(), nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(),
                        nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.5),
                        nn.Linear(4096, 1024), nn.ReLU(), nn.Dropout(0.5), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 100))
    return net, (batch, 3, 32, 32), 100, sgd


def vgg16(small):
    batch, side = (2, 32) if small else (64, 224)
    layers, channels = [], 3
    for width, depth in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(depth):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    layers += [nn.AdaptiveAvgPool2d(7), nn.Flatten(), nn.Linear(25088, 4096), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4096, 4096),
               nn.ReLU(), nn.Dropout(0.5), nn.Linear(4096, 1000)]
    return nn.Sequential(*layers), (batch, 3, side, side), 1000, sgd


def transformer(small):
    batch, context, vocabulary, layers, width, heads = (2, 8, 32, 1, 16, 2) if small else (16, 512, 50304, 12, 768, 12)

    class Attention(nn.Module):
        """PyTorch's own, in one kernel; the native trainer's graph has two products and a softmax."""

        def __init__(self):
            super().__init__()
            self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

        def forward(self, x):
            split = [f(x).view(*x.shape[:2], heads, -1).transpose(1, 2) for f in (self.query, self.key, self.value)]
            return self.out(nn.functional.scaled_dot_product_attention(*split, is_causal=True).transpose(1, 2).reshape(x.shape))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.Sequential(nn.LayerNorm(width), Attention())
            self.feed = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x):
            x = x + self.attention(x)
            return x + self.feed(x)

    class Transformer(nn.Module):
        def __init__(self):
            super().__init__()
            self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
            self.blocks = nn.Sequential(*(Block() for _ in range(layers)), nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False))

        def forward(self, tokens):
            x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
            return self.blocks(x).flatten(0, 1)

    return Transformer(), (batch, context), vocabulary, adamw


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, fused=True)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-4, fused=True)


# The names are those of steps.cpp.
MODELS = {'mlp': mlp, 'lenet5': lenet5, 'alexnet-cifar': alexnet, 'vgg16-bn': vgg16, 'gpt': transformer}


def finished():
    if DEVICE == 'cuda':
        torch.cuda.synchronize()


def allocated(peak=False):
    """Bytes on the GPU; none are counted on a CPU."""
    if DEVICE != 'cuda':
        return 0
    return torch.cuda.max_memory_allocated() if peak else torch.cuda.memory_allocated()


class Way:
    """One precision of one model."""

    def __init__(self, name, make, small, tf32=False, low=None):
        torch.manual_seed(1)
        self.name, self.tf32, self.low, self.seconds = name, tf32, low, []
        net, shape, classes, optimizer = make(small)
        self.net = net.to(DEVICE)
        if len(shape) == 2:
            self.input = torch.randint(classes, shape, device=DEVICE)
            self.target = torch.randint(classes, (shape[0] * shape[1],), device=DEVICE)
        else:
            self.input, self.target = torch.randn(shape, device=DEVICE), torch.randint(classes, shape[:1], device=DEVICE)
            if low:
                self.net, self.input = (t.to(memory_format=torch.channels_last) for t in (self.net, self.input))
        self.batch = self.input.cpu().pin_memory() if DEVICE == 'cuda' else self.input.clone()
        self.optimizer = optimizer(self.net.parameters())
        self.scaler = torch.amp.GradScaler(DEVICE, enabled=low == torch.float16)
        self.peak = 0

    def step(self):
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = self.tf32
        held = allocated()  # also by the other ways, which wait
        if DEVICE == 'cuda':
            torch.cuda.reset_peak_memory_stats()
        finished()
        start = time.perf_counter()
        self.input.copy_(self.batch, non_blocking=True)
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE, dtype=self.low, enabled=self.low is not None):
            loss = nn.functional.cross_entropy(self.net(self.input), self.target)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        loss.item()
        finished()
        self.seconds.append(time.perf_counter() - start)
        self.peak = max(self.peak, allocated(peak=True) - held)

    def own_bytes(self):
        """Of what stays between steps: parameters, gradients, optimizer, batch."""
        held = [self.input, self.target, *self.net.parameters(), *self.net.buffers()]
        held += [p.grad for p in self.net.parameters() if p.grad is not None]
        held += [t for state in self.optimizer.state.values() for t in state.values() if torch.is_tensor(t)]
        return sum(t.numel() * t.element_size() for t in held)


def measured(model, make, small):
    bf16 = DEVICE == 'cpu' or torch.cuda.is_bf16_supported(including_emulation=False)
    low, low_name = (torch.bfloat16, 'BF16') if bf16 else (torch.float16, 'FP16')
    ways = [Way('FP32', make, small), *([Way('TF32', make, small, tf32=True)] if bf16 else []),
            Way(f'autocast {low_name}', make, small, tf32=bf16, low=low)]
    for way in ways:
        for _ in range(2 if small else 5):
            way.step()
        way.seconds.clear()
    for _ in range(2 if small else 30):
        for way in ways:
            way.step()
    for way in ways:
        quartiles = statistics.quantiles(way.seconds, n=4, method='inclusive')
        yield {'model': model, 'way': way.name, 'seconds': statistics.median(way.seconds), 'quartiles': [quartiles[0], quartiles[2]],
               'peak_bytes': way.own_bytes() + way.peak}


def measure_all(figures, small, keep):
    """Returns: how many models failed."""
    failed = 0
    torch.backends.cudnn.benchmark = True  # algorithms by measurement, as here
    figures |= {'version': torch.__version__, 'device': torch.cuda.get_device_name() if DEVICE == 'cuda' else 'CPU'}
    for model, make in MODELS.items():
        try:
            figures['rows'] += list(measured(model, make, small))
            if DEVICE == 'cuda':
                torch.cuda.empty_cache()
        except Exception as fault:  # no memory, or anything else of this model
            failed += 1
            print(f'{model} failed: {type(fault).__name__}: {fault}', flush=True)
        keep()
    return failed


def main():
    file = next((a for a in sys.argv[1:] if not a.startswith('--')), None)
    figures = {'rows': []}

    def keep():
        if file:
            with open(file, 'w') as to:
                json.dump(figures, to, indent=1)
    failed = 0
    if not torch:
        figures['why'] = why
    elif DEVICE == 'cuda' and not torch.cuda.is_available():
        figures['why'] = 'the torch that is here has no CUDA or sees no GPU'
    else:
        failed = measure_all(figures, '--small' in sys.argv, keep)
    keep()
    if figures.get('why'):
        print(f"PyTorch measures nothing here: {figures['why']}.")
    for row in figures['rows']:
        print(f"{row['model']:<14} {row['way']:<14} {row['seconds'] * 1e3:9.3f} ms, peak {row['peak_bytes'] / 2**20:.0f} MiB")
    if failed:
        print(f'{failed} of {len(MODELS)} models failed (see above)')
    return int(failed > 0)


sys.exit(main())
