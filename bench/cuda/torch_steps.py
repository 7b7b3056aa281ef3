# SPDX-License-Identifier: Apache-2.0
# The models of steps.cpp in PyTorch, as its tutorials write them: FP32, TF32, and torch.autocast (BF16, or FP16 with a GradScaler
# if the GPU has no BF16), and autocast with what PyTorch offers to be faster: torch.compile, channels-last, the other
# attention kernels, each by itself. Fused optimizers and measured convolutions unless a way says otherwise.
# All of a model take turns. A step is timed as those of steps.cpp: with its batch on the GPU already and the loss read, with
# the copy of its batch from pinned memory besides, and without loss.item(), which comp's steps always have. Images are bytes
# that the GPU makes numbers of, but for one way. Times are of blocks of steps, which nothing but loss.item() waits for.
# Writes JSON after each model; one that fails is named and leaves the others their turn, and the status is 1. A way besides the
# first ones that PyTorch cannot do here is left out, with the reason. Without torch or a GPU that it sees the file says why, and
# the status is 0. --device=cpu runs all of it without a GPU, to see that it runs.
#   torch_steps.py [--small] [--device=cpu] [--model=NAME] [FILE.json]    --models: only their names
import contextlib
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


def sgd(parameters, **kind):
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, **kind)


def adamw(parameters, **kind):
    return torch.optim.AdamW(parameters, lr=1e-4, **kind)


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
    """One way to train one model. attention: the kernel of scaled_dot_product_attention, PyTorch's choice if it is None."""

    def __init__(self, name, make, small, tf32=False, low=None, last=False, bytes=True, compiled=False, kind='fused', attention=None):
        torch.manual_seed(1)
        self.name, self.tf32, self.low, self.attention = name, tf32, low, attention
        self.there, self.uploaded, self.unread = [], [], []  # seconds of steps
        net, shape, classes, optimizer = make(small)
        self.net = net.to(DEVICE)
        if len(shape) == 2:
            self.input, targets = torch.randint(classes, shape), shape[0] * shape[1]
        else:
            self.input, targets = torch.randint(256, shape, dtype=torch.uint8), shape[0]
            self.input = self.input if bytes else self.numbers(self.input)
        if last:
            self.net, self.input = (t.to(memory_format=torch.channels_last) for t in (self.net, self.input))
        self.batch = [self.input, torch.randint(classes, (targets,))]
        if DEVICE == 'cuda':
            self.batch = [t.pin_memory() for t in self.batch]
        self.input, self.target = (t.to(DEVICE) for t in self.batch)
        self.loss = torch.compile(self.loss_of, backend='aot_eager' if small else 'inductor') if compiled else self.loss_of
        self.optimizer = optimizer(self.net.parameters(), **{kind: True})
        self.scaler = torch.amp.GradScaler(DEVICE, enabled=low == torch.float16)
        self.peak = 0

    @staticmethod
    def numbers(image):
        return image.to(torch.float32).div(255).sub(0.5).div(0.25)

    def loss_of(self, input, target):
        return nn.functional.cross_entropy(self.net(self.numbers(input) if input.dtype == torch.uint8 else input), target)

    def step(self, upload):
        if upload:
            for to, batch in zip((self.input, self.target), self.batch):
                to.copy_(batch, non_blocking=True)
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE, dtype=self.low, enabled=self.low is not None):
            loss = self.loss(self.input, self.target)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss

    def block(self, seconds, steps, upload=False, reads=True):
        """Adds the time of a step, of so many in a row."""
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = self.tf32
        with torch.nn.attention.sdpa_kernel(self.attention) if self.attention else contextlib.nullcontext():
            finished()
            start = time.perf_counter()
            for _ in range(steps):
                loss = self.step(upload)
                if reads:
                    loss.item()
            finished()
        seconds.append((time.perf_counter() - start) / steps)

    def round(self, steps):
        held = allocated()  # also by the other ways, which wait
        if DEVICE == 'cuda':
            torch.cuda.reset_peak_memory_stats()
        self.block(self.there, steps)
        self.block(self.uploaded, steps, upload=True)
        self.block(self.unread, steps, reads=False)
        self.peak = max(self.peak, allocated(peak=True) - held)

    def own_bytes(self):
        """Of what stays between steps: parameters, gradients, optimizer, batch."""
        held = [self.input, self.target, *self.net.parameters(), *self.net.buffers()]
        held += [p.grad for p in self.net.parameters() if p.grad is not None]
        held += [t for state in self.optimizer.state.values() for t in state.values() if torch.is_tensor(t)]
        return sum(t.numel() * t.element_size() for t in held)

    def row(self, model):
        quartiles = statistics.quantiles(self.there, n=4, method='inclusive')
        return {'model': model, 'way': self.name, 'seconds': statistics.median(self.there), 'quartiles': [quartiles[0], quartiles[2]],
                'with_upload_seconds': statistics.median(self.uploaded), 'without_loss_seconds': statistics.median(self.unread),
                'peak_bytes': self.own_bytes() + self.peak}


def ways_of(make):
    """Names and options; the first ones are those of steps.cpp, the others autocast with one thing changed, or two."""
    bf16 = DEVICE == 'cpu' or torch.cuda.is_bf16_supported(including_emulation=False)
    low, name = (torch.bfloat16, 'autocast BF16') if bf16 else (torch.float16, 'autocast FP16')
    base = {'tf32': bf16, 'low': low}
    main = {'FP32': {}, **({'TF32': {'tf32': True}} if bf16 else {}), name: base}
    more = {'torch.compile': {'compiled': True}, 'foreach optimizer': {'kind': 'foreach'}}
    if make is transformer:
        kernels = torch.nn.attention.SDPBackend
        more |= {f'sdpa {kernel.name.removesuffix("_ATTENTION").lower()}': {'attention': kernel}
                 for kernel in (kernels.FLASH_ATTENTION, kernels.CUDNN_ATTENTION, kernels.EFFICIENT_ATTENTION, kernels.MATH)}
    elif make is not mlp:
        more |= {'channels-last': {'last': True}, 'channels-last, torch.compile': {'last': True, 'compiled': True}}
    if make is not transformer:
        more['FP32 images'] = {'bytes': False, 'last': make is not mlp}
    return main, {f'{name}, {what}': base | options for what, options in more.items()}


def measured(model, make, small):
    """Rows, and the reasons of ways that are left out."""
    main, more = ways_of(make)
    ways, left_out = [], {}
    for name, options in (main | more).items():
        try:
            way = Way(name, make, small, **options)
            for _ in range(1 if small else 2):
                way.round(1 if small else 3)
            way.there, way.uploaded, way.unread = [], [], []
            ways.append(way)
        except Exception as fault:  # no such kernel here, no compiler, no memory
            if name in main:
                raise
            left_out[f'{model}, {name}'] = f'{type(fault).__name__}: {fault}'.splitlines()[0]
    for _ in range(2 if small else 8):
        for way in ways:
            way.round(1 if small else 4)
    return [way.row(model) for way in ways], left_out


def measure_all(figures, chosen, small, keep):
    """Returns: how many models failed."""
    failed = 0
    torch.backends.cudnn.benchmark = True  # algorithms by measurement, as here
    figures |= {'version': torch.__version__, 'left_out': {}, 'device': torch.cuda.get_device_name() if DEVICE == 'cuda' else 'CPU'}
    print(f'libraries: PyTorch {torch.__version__}, its cuDNN {torch.backends.cudnn.version()}, its CUDA {torch.version.cuda}')
    for model, make in MODELS.items():
        if chosen not in (None, model):
            continue
        try:
            rows, left_out = measured(model, make, small)
            figures['rows'] += rows
            figures['left_out'] |= left_out
            if DEVICE == 'cuda':
                torch.cuda.empty_cache()
        except Exception as fault:  # no memory, or anything else of this model
            failed += 1
            print(f'{model} failed: {type(fault).__name__}: {fault}', flush=True)
        keep()
    return failed


def main():
    if '--models' in sys.argv:
        print(*MODELS, sep='\n')
        return 0
    chosen = next((a.partition('=')[2] for a in sys.argv if a.startswith('--model=')), None)
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
        failed = measure_all(figures, chosen, '--small' in sys.argv, keep)
    keep()
    if figures.get('why'):
        print(f"PyTorch measures nothing here: {figures['why']}.")
    for row in figures['rows']:
        print(f"{row['model']:<14} {row['way']:<42} {row['seconds'] * 1e3:9.3f} ms, with its upload {row['with_upload_seconds'] * 1e3:9.3f} ms, "
              f"loss not read {row['without_loss_seconds'] * 1e3:9.3f} ms, peak {row['peak_bytes'] / 2**20:.0f} MiB")
    for way, reason in figures.get('left_out', {}).items():
        print(f'{way}: left out, {reason}')
    if failed:
        print(f'{failed} of {len(MODELS)} models failed (see above)')
    return int(failed > 0)


sys.exit(main())
