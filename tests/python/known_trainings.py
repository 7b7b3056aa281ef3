# SPDX-License-Identifier: Apache-2.0
"""Twenty trainings of models that were not written for comp: torchvision's, Hugging Face's from their configurations
(random weights), torch's own, and steps that are not one forward and one update. `TRAININGS[name](large)` makes one:
small for the tests, `large` for bench/python/trainings.py. Their data is random and always the same.
COMP_TEST_DEVICE=cuda makes them on a GPU.
"""

import importlib.util
import os
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, kl_div, log_softmax, softmax

BATCHES = 8
TRAININGS = {}
DEVICE = os.environ.get('COMP_TEST_DEVICE', 'cpu')
if DEVICE != 'cpu':
    torch.set_default_device(DEVICE)


def needs(*packages):
    """Registers a training under its function's name, with the packages that it cannot do without."""

    def register(make):
        make.missing = [p for p in packages if importlib.util.find_spec(p) is None]
        TRAININGS[make.__name__] = make
        return make

    return register


def one_forward(training, plan, batch):
    training.optimizers[0].zero_grad()
    with plan:
        loss = training.loss(batch)
    loss.backward()
    training.optimizers[0].step()
    return loss


@dataclass
class Training:
    model: object  # a module, or several by name
    loss: object  # of a batch: what is trained, and what is evaluated
    data: list  # of batches
    optimizers: list = None
    step: object = one_forward
    state: list = field(default_factory=list)  # what else changes while training
    segments: tuple = ('forward',)
    evaluated: object = None  # the region in which `loss` is evaluated; None: the plan itself

    def __post_init__(self):
        for module in self.modules():
            module.to(DEVICE)  # what knows nothing of a default device
        if self.optimizers is None:
            self.optimizers = [torch.optim.AdamW(self.modules()[0].parameters(), 1e-3)]

    def modules(self):
        return list(self.model.values()) if isinstance(self.model, dict) else [self.model]

    def train(self, plan, batch):
        return self.step(self, plan, batch)

    def evaluate(self, plan, batch):
        """The loss in evaluation mode and without gradients; modes are as before afterwards."""
        modes = [(part, part.training) for module in self.modules() for part in module.modules()]
        for module in self.modules():
            module.eval()
        with torch.no_grad(), plan(self.segments[-1]):
            loss = self.loss(batch)
        for part, mode in modes:
            part.training = mode
        return loss


def dice():
    return torch.Generator(DEVICE).manual_seed(3)


def images(count, size, classes=4):
    """Pictures whose brightness has to do with their class."""
    draw, data = dice(), []
    for _ in range(BATCHES):
        y = torch.randint(0, classes, (count,), generator=draw)
        data.append((torch.randn(count, 3, size, size, generator=draw) + y.reshape(-1, 1, 1, 1) / 4, y))
    return data


def sentences(count, longest, words):
    """Batches of other lengths each, padded to the longest of each: words that count up, and their mask."""
    draw, data = dice(), []
    for i in range(BATCHES):
        length = longest - (i % 4) * longest // 8
        begin = torch.randint(2, words, (count, 1), generator=draw)
        tokens = (begin + torch.arange(length)) % (words - 2) + 2
        mask = torch.ones(count, length, dtype=torch.long)
        mask[0, length - 1 - i % 3 :] = 0
        data.append({'input_ids': tokens * mask, 'attention_mask': mask})
    return data


def labelled(data, classes=4):
    return [batch | {'labels': batch['input_ids'][:, 0] % classes} for batch in data]


def continued(data):
    """The words themselves as labels, none for padding."""
    return [b | {'labels': b['input_ids'].masked_fill(b['attention_mask'] == 0, -100)} for b in data]


def classifies(net, data):
    return Training(net, lambda batch: cross_entropy(net(batch[0]), batch[1]), data)


def of_transformers(net, data):
    return Training(net, lambda batch: net(**batch).loss, data)


# torchvision


@needs('torchvision')
def resnet18(large):
    import torchvision

    net = torchvision.models.resnet18(num_classes=4)
    return classifies(net, images(*((16, 64) if large else (4, 32))))


@needs('torchvision')
def mobilenet_v3(large):
    import torchvision

    net = torchvision.models.mobilenet_v3_small(num_classes=4)
    return classifies(net, images(*((16, 96) if large else (4, 32))))


@needs('torchvision')
def vit(large):
    from torchvision.models import VisionTransformer

    size = {'image_size': 64, 'num_layers': 4, 'num_heads': 4, 'hidden_dim': 256, 'mlp_dim': 1024}
    small = {'image_size': 16, 'num_layers': 2, 'num_heads': 2, 'hidden_dim': 32, 'mlp_dim': 64}
    size = size if large else small
    net = VisionTransformer(patch_size=8, dropout=0.1, num_classes=4, **size)
    nn.init.normal_(net.heads.head.weight, std=0.02)  # torchvision leaves it at zero
    return classifies(net, images(16 if large else 4, size['image_size']))


@needs('torchvision')
def swin(large):
    from torchvision.models import SwinTransformer

    size = {'embed_dim': 96, 'depths': [2, 2], 'num_heads': [3, 6], 'window_size': [4, 4]}
    small = {'embed_dim': 16, 'depths': [1, 1], 'num_heads': [2, 2], 'window_size': [2, 2]}
    net = SwinTransformer(patch_size=[4, 4], stochastic_depth_prob=0.2, num_classes=4, **(size if large else small))
    return classifies(net, images(*((8, 64) if large else (4, 16))))


@needs('torchvision')
def convnext(large):
    from torchvision.models import ConvNeXt
    from torchvision.models.convnext import CNBlockConfig

    widths = (96, 192) if large else (16, 32)
    blocks = [CNBlockConfig(widths[0], widths[1], 2 if large else 1), CNBlockConfig(widths[1], None, 2 if large else 1)]
    net = ConvNeXt(blocks, stochastic_depth_prob=0.2, num_classes=4)
    return classifies(net, images(*((8, 64) if large else (4, 16))))


# Hugging Face


@needs('transformers')
def bert(large):
    import transformers

    width = 256 if large else 32
    shape = transformers.BertConfig(
        vocab_size=1024 if large else 64,
        hidden_size=width,
        num_hidden_layers=4 if large else 2,
        num_attention_heads=width // 32 if large else 2,
        intermediate_size=4 * width,
        max_position_embeddings=128,
        num_labels=4,
    )
    data = sentences(*((16, 96, 1024) if large else (4, 12, 64)))
    return of_transformers(transformers.BertForSequenceClassification(shape), labelled(data))


@needs('transformers')
def gpt2(large):
    import transformers

    shape = transformers.GPT2Config(
        vocab_size=1024 if large else 64,
        n_positions=128,
        n_embd=256 if large else 32,
        n_layer=4 if large else 2,
        n_head=4 if large else 2,
    )
    data = sentences(*((8, 96, 1024) if large else (4, 12, 64)))
    return of_transformers(transformers.GPT2LMHeadModel(shape), continued(data))


@needs('transformers')
def t5(large):
    import transformers

    shape = transformers.T5Config(
        vocab_size=1024 if large else 64,
        d_model=256 if large else 32,
        d_kv=64 if large else 16,
        d_ff=1024 if large else 64,
        num_layers=3 if large else 2,
        num_heads=4 if large else 2,
        decoder_start_token_id=0,
    )
    data = sentences(*((8, 64, 1024) if large else (4, 12, 64)))
    return of_transformers(transformers.T5ForConditionalGeneration(shape), continued(data))


def llama_like(large):
    return {
        'vocab_size': 1024 if large else 64,
        'hidden_size': 256 if large else 32,
        'intermediate_size': 688 if large else 64,
        'num_hidden_layers': 4 if large else 2,
        'num_attention_heads': 4 if large else 2,
        'num_key_value_heads': 2 if large else 1,
        'max_position_embeddings': 128,
    }


@needs('transformers')
def llama(large):
    import transformers

    data = sentences(*((8, 96, 1024) if large else (4, 12, 64)))
    return of_transformers(transformers.LlamaForCausalLM(transformers.LlamaConfig(**llama_like(large))), continued(data))


@needs('transformers')
def mixtral(large):
    import transformers

    shape = transformers.MixtralConfig(**llama_like(large), num_local_experts=4, num_experts_per_tok=2)
    data = sentences(*((4, 96, 1024) if large else (2, 8, 64)))  # few words: experts are left without any
    return of_transformers(transformers.MixtralForCausalLM(shape), continued(data))


@needs('transformers')
def wav2vec2(large):
    import transformers

    width = 192 if large else 32
    shape = transformers.Wav2Vec2Config(
        vocab_size=16,
        hidden_size=width,
        num_hidden_layers=3,
        num_attention_heads=4 if large else 2,
        intermediate_size=4 * width,
        conv_dim=(128, 128, 128) if large else (16, 16, 16),
        conv_stride=(5, 4, 4),
        conv_kernel=(10, 8, 4),
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4,
        layerdrop=0.3 if DEVICE == 'cpu' else 0.0,  # see test_trainings.py: with a GPU's random numbers it drops one at first
        mask_time_length=2,
        ctc_loss_reduction='mean',
        ctc_zero_infinity=True,
    )
    draw, data, longest = dice(), [], 8000 if large else 2000
    for i in range(BATCHES):
        sound = torch.randn(4 if large else 2, longest - (i % 4) * longest // 8, generator=draw)
        data.append({'input_values': sound, 'labels': torch.randint(1, 16, (len(sound), 5), generator=draw)})
    return of_transformers(transformers.Wav2Vec2ForCTC(shape), data)


@needs('transformers')
def mamba(large):
    import transformers

    shape = transformers.MambaConfig(
        vocab_size=1024 if large else 64,
        hidden_size=192 if large else 32,
        num_hidden_layers=2,
        state_size=16 if large else 4,
        use_cache=False,
    )
    data = sentences(*((4, 48, 1024) if large else (2, 8, 64)))
    return of_transformers(transformers.MambaForCausalLM(shape), continued(data))


# torch's own


class Sequence(nn.Module):
    """Words in, for each one out: through a transformer's encoder and decoder."""

    def __init__(self, words, width, layers):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.body = nn.Transformer(width, 4, layers, layers, 4 * width, batch_first=True)
        self.head = nn.Linear(width, words)

    def forward(self, tokens, mask):
        h, padded = self.embed(tokens), mask == 0
        later = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1]).isinf()
        out = self.body(h, h, tgt_mask=later, src_key_padding_mask=padded, memory_key_padding_mask=padded)
        return self.head(out)


def next_words(net, data):
    def loss(batch):
        logits = net(batch['input_ids'], batch['attention_mask'])
        return cross_entropy(logits.flatten(0, 1), batch['labels'].flatten())

    return Training(net, loss, continued(data))


@needs()
def transformer(large):
    net = Sequence(*((1024, 256, 2) if large else (64, 32, 1)))
    return next_words(net, sentences(*((8, 64, 1024) if large else (4, 12, 64))))


class Recurrent(nn.Module):
    def __init__(self, words, width, both_ways):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.body = nn.LSTM(width, width, 2, batch_first=True, dropout=0.1, bidirectional=both_ways)
        self.head = nn.Linear(width * (2 if both_ways else 1), words)

    def forward(self, tokens, mask):
        return self.head(self.body(self.embed(tokens))[0])


@needs()
def lstm(large):
    net = Recurrent(*((1024, 256) if large else (64, 32)), both_ways=False)
    return next_words(net, sentences(*((16, 64, 1024) if large else (4, 12, 64))))


@needs()
def bidirectional_lstm(large):
    net = Recurrent(*((1024, 256) if large else (64, 32)), both_ways=True)
    return next_words(net, sentences(*((16, 64, 1024) if large else (4, 12, 64))))


class GraphAttention(nn.Module):
    """A layer of GAT (Velickovic 2018) over a list of edges."""

    def __init__(self, given, width, heads):
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(given, heads * width, bias=False)
        self.source = nn.Parameter(torch.randn(heads, width) / width**0.5)
        self.target = nn.Parameter(torch.randn(heads, width) / width**0.5)

    def forward(self, x, edges):
        h = self.project(x).unflatten(-1, (self.heads, -1))
        a, b = edges
        score = nn.functional.leaky_relu((h * self.source).sum(-1)[a] + (h * self.target).sum(-1)[b], 0.2)
        weight = (score - score.max().detach()).exp()
        total = torch.zeros(len(x), self.heads, dtype=weight.dtype).index_add(0, b, weight)
        weight = weight / total[b]
        out = torch.zeros(h.shape, dtype=h.dtype).index_add(0, b, (h[a] * weight.unsqueeze(-1)).to(h.dtype))
        return out.flatten(1)


class GAT(nn.Module):
    def __init__(self, given, width, heads):
        super().__init__()
        self.first = GraphAttention(given, width, heads)
        self.second = GraphAttention(heads * width, 4, 1)

    def forward(self, x, edges):
        h = nn.functional.dropout(nn.functional.elu(self.first(x, edges)), 0.2, self.training)
        return self.second(h, edges)


@needs()
def gat(large):
    net = GAT(64, *((64, 8) if large else (8, 2)))
    draw, data, most = dice(), [], 2000 if large else 40
    for i in range(BATCHES):
        n = most - (i % 4) * most // 8  # graphs differ in size
        y = torch.randint(0, 4, (n,), generator=draw)
        x = torch.randn(n, 64, generator=draw) + y.reshape(-1, 1) / 4
        loops = torch.arange(n).expand(2, -1)
        data.append((x, torch.cat([loops, torch.randint(0, n, (2, 4 * n), generator=draw)], 1), y))
    return Training(net, lambda batch: cross_entropy(net(batch[0], batch[1]), batch[2]), data)


# Steps that are not one forward and one update


def convolutions(width):
    layers, given = [], 3
    for out in (width, 2 * width):
        layers += [nn.Conv2d(given, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(), nn.MaxPool2d(2)]
        given = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(given, 4))


@needs()
def distillation(large):
    """A teacher says what a student should: it runs in the region, without gradients."""
    student, teacher = convolutions(32 if large else 8), convolutions(64 if large else 16).eval().requires_grad_(False)

    def loss(batch):
        with torch.no_grad():
            wanted = softmax(teacher(batch[0]) / 2, -1)
        logits = student(batch[0])
        return cross_entropy(logits, batch[1]) + kl_div(log_softmax(logits / 2, -1), wanted, reduction='batchmean')

    model = {'student': student, 'teacher': teacher}
    return Training(model, loss, images(*((32, 32) if large else (4, 16))))


@needs()
def sam(large):
    """Sharpness-aware minimisation (Foret 2021): the update is that of the gradient at the worst point near by."""
    net = convolutions(32 if large else 8)

    def step(training, plan, batch):
        optimizer, parameters = training.optimizers[0], list(net.parameters())
        optimizer.zero_grad()
        with plan:
            loss = training.loss(batch)
        loss.backward()
        with torch.no_grad():
            length = torch.stack([p.grad.norm() for p in parameters]).norm()
            moved = [p.grad * (0.05 / (length + 1e-12)) for p in parameters]
            for p, way in zip(parameters, moved):
                p.add_(way)
        optimizer.zero_grad()
        with plan:
            worst = training.loss(batch)
        worst.backward()
        with torch.no_grad():
            for p, way in zip(parameters, moved):
                p.sub_(way)
        optimizer.step()
        return loss

    training = classifies(net, images(*((32, 32) if large else (4, 16))))
    training.step = step
    training.optimizers = [torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)]
    return training


@needs()
def gan(large):
    """A DCGAN: two models, two optimizers, two forwards that are named."""
    width, count = (64, 32) if large else (8, 4)
    make = nn.Sequential(
        nn.ConvTranspose2d(16, 2 * width, 4),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.ConvTranspose2d(2 * width, width, 4, 2, 1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.ConvTranspose2d(width, 3, 4, 2, 1),
        nn.Tanh(),
    )
    judge = nn.Sequential(
        nn.Conv2d(3, width, 4, 2, 1),
        nn.LeakyReLU(0.2),
        nn.Conv2d(width, 2 * width, 4, 2, 1),
        nn.BatchNorm2d(2 * width),
        nn.LeakyReLU(0.2),
        nn.Conv2d(2 * width, 1, 4),
        nn.Flatten(),
    )
    of_judge, of_make = (torch.optim.Adam(part.parameters(), 2e-4, (0.5, 0.999)) for part in (judge, make))
    yes, no = torch.ones(count, 1), torch.zeros(count, 1)

    def step(training, plan, batch):
        real, noise = batch[0], torch.randn(count, 16, 1, 1)
        of_judge.zero_grad()
        with plan('judge'):
            right = binary_cross_entropy_with_logits(judge(real), yes)
            right = right + binary_cross_entropy_with_logits(judge(make(noise).detach()), no)
        right.backward()
        of_judge.step()
        of_make.zero_grad()
        with plan('make'):
            fooled = binary_cross_entropy_with_logits(judge(make(noise)), yes)
        fooled.backward()
        of_make.step()
        return {'judge': right, 'make': fooled}

    def loss(batch):
        noise = torch.randn(count, 16, 1, 1, generator=dice())
        return binary_cross_entropy_with_logits(judge(make(noise)), yes)

    model = {'judge': judge, 'make': make}
    return Training(model, loss, images(count, 16), [of_judge, of_make], step, segments=('judge', 'make'))


@needs()
def ema(large):
    """An average of the weights is kept beside the model, and is what is evaluated."""
    net = convolutions(32 if large else 8)
    average = torch.optim.swa_utils.AveragedModel(
        net, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=True
    )

    def step(training, plan, batch):
        loss = one_forward(training, plan, batch)
        average.update_parameters(net)
        return loss

    def loss(batch):
        return cross_entropy((net if net.training else average)(batch[0]), batch[1])

    training = Training(net, loss, images(*((32, 32) if large else (4, 16))), step=step, state=[average])
    return training
