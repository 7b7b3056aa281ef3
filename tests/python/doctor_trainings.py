# SPDX-License-Identifier: Apache-2.0
"""Small trainings, sound ones and ones with a bug that raises nothing, as functions that return (step, batches, model)."""

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, dropout, mse_loss

import support  # noqa: F401  (finds comp)


def batches_of(*shape, classes=4, batches=4, dtype=torch.float32):
    """Batches whose targets can be learned."""
    direction = torch.randn(shape[-1], classes, dtype=dtype)
    xs = [torch.randn(*shape, dtype=dtype) for _ in range(batches)]
    return [(x, (x.reshape(shape[0], -1, shape[-1]).mean(1) @ direction).argmax(-1)) for x in xs]


def words(batches=4, length=6, vocabulary=20):
    xs = [torch.randint(vocabulary, (8, length)) for _ in range(batches)]
    return [(x, x[:, 0] % 4) for x in xs]


def usual(net, optimizer, loss=cross_entropy):
    def step(plan, batch):
        optimizer.zero_grad()
        with plan:
            value = loss(net(batch[0]), batch[1])
        value.backward()
        optimizer.step()
        return value

    return step


def plain(net, optimizer, data=None, loss=cross_entropy):
    return usual(net, optimizer, loss), data or batches_of(16, 8), net


def mlp(activation=nn.ReLU, width=16):
    return nn.Sequential(nn.Linear(8, width), activation(), nn.Linear(width, width), activation(), nn.Linear(width, 4))


def adam(net, lr=1e-2):
    return torch.optim.Adam(net.parameters(), lr=lr)


def sgd(net, lr=0.05, **more):
    return torch.optim.SGD(net.parameters(), lr=lr, **more)


class Words(nn.Module):
    """An embedding and what comes after it."""

    def __init__(self, body, vocabulary=20, width=16, tied=False):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.body = body
        self.head = nn.Linear(width, vocabulary if tied else 4)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, x):
        h = self.body(self.embedding(x))
        h = h[0] if isinstance(h, tuple) else h
        return self.head(h.mean(1))


def transformer(p=0.1):
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=p, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


# Models.


class Mixed64(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16).double(), nn.Linear(16, 4)

    def forward(self, x):
        return self.second(self.first(x).tanh().float())


class Adapted(nn.Module):
    """A frozen layer and a product of two small ones, the second of which begins at 0."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(8, 4).requires_grad_(False)
        self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 4, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


class Experts(nn.Module):
    """Two experts, the second of which gets few rows, and a head that is not used."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(8, 4) for _ in range(2))
        self.unused = nn.Linear(8, 4)

    def forward(self, x):
        chosen = x[:, 0] > 1
        result = x.new_zeros(x.shape[0], 4)
        for n, expert in enumerate(self.experts):
            rows = (chosen == bool(n)).nonzero()[:, 0]
            result = result.index_add(0, rows, expert(x[rows]))
        return result


class TwoLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)


class Cut(TwoLayers):
    def forward(self, x):
        return self.second(self.first(x).relu().data)


class Heedless(TwoLayers):
    """As transformers 33844: the function drops values, whatever mode the module is in."""

    def forward(self, x):
        return self.second(dropout(self.first(x), 0.1))


class Masked(nn.Module):
    """A causal mask turned round, by -inf: the last word may look at none."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(16, 16)

    def forward(self, x):
        mask = torch.full((x.shape[1], x.shape[1]), -torch.inf).tril()
        return (self.project(x) @ x.transpose(1, 2) + mask).softmax(-1) @ x


def convolutions():
    def block(channels):
        return nn.Conv2d(channels, 8, 3), nn.BatchNorm2d(8), nn.ReLU()

    return nn.Sequential(*block(3), *block(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))


def with_dropout():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))


def frozen(net):
    net[0].requires_grad_(False)
    return net


def sparse(net):
    net.embedding.sparse = True
    return net


def dead(net):
    with torch.no_grad():
        net[0].bias.fill_(-100)
    return net


def normed():
    of = nn.utils.parametrizations
    return nn.Sequential(of.weight_norm(nn.Linear(8, 16)), nn.ReLU(), of.spectral_norm(nn.Linear(16, 4)))


def in_bf16(net, optimizer):
    data = [(x.bfloat16(), y) for x, y in batches_of(16, 8)]
    return plain(net, optimizer, data, lambda logits, y: cross_entropy(logits.float(), y))


# Steps.


def with_schedule(net, optimizer, rate):
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    inner = usual(net, optimizer)

    def step(plan, batch):
        value = inner(plan, batch)
        schedule.step()
        return value

    return step, batches_of(16, 8), net


def with_evaluation(net, switch=True, gradients=False):
    """A training that runs the model after each step, in evaluation mode if `switch`."""
    inner = usual(net, adam(net))

    def step(plan, batch):
        value = inner(plan, batch)
        net.train(not switch)
        with torch.set_grad_enabled(gradients), plan:
            net(batch[0])
        net.train()
        return value

    return step, batches_of(16, 8), net


def by_hand(update=lambda p: None):
    """A training whose gradients are cleared and applied without an optimizer."""
    net = mlp()

    def step(plan, batch):
        net.zero_grad()
        with plan:
            value = cross_entropy(net(batch[0]), batch[1])
        value.backward()
        with torch.no_grad():
            for p in net.parameters():
                update(p)
        return value

    return step, batches_of(16, 8), net


def frozen_teacher():
    student, teacher = mlp(), mlp().eval()

    def step(plan, batch):
        optimizer.zero_grad()
        with plan:
            with torch.no_grad():
                wanted = teacher(batch[0])
            value = mse_loss(student(batch[0]), wanted)
        value.backward()
        optimizer.step()
        return value

    optimizer = adam(student)
    return step, batches_of(16, 8), {'student': student, 'teacher': teacher}


def accumulation():
    net, state = mlp(), {'step': 0}
    optimizer = sgd(net)

    def step(plan, batch):
        with plan:
            value = cross_entropy(net(batch[0]), batch[1]) / 4
        value.backward()
        state['step'] += 1
        if state['step'] % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
        return value

    return step, batches_of(16, 8), net


def gan():
    generator = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8))
    critic = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    of_generator, of_critic = adam(generator, 1e-3), adam(critic, 1e-3)

    def step(plan, batch):
        ones, zeros = torch.ones(16, 1), torch.zeros(16, 1)
        of_critic.zero_grad()
        with plan('critic'):
            points = generator(torch.randn(16, 4))
            loss = binary_cross_entropy_with_logits(critic(batch[0]), ones)
            loss = loss + binary_cross_entropy_with_logits(critic(points.detach()), zeros)
        loss.backward()
        of_critic.step()
        of_generator.zero_grad()
        with plan('generator'):
            value = binary_cross_entropy_with_logits(critic(points), ones)
        value.backward()
        of_generator.step()
        return value

    return step, batches_of(16, 8), {'generator': generator, 'critic': critic}


def loss_scaling():
    net = mlp()
    optimizer, scaler = sgd(net), torch.amp.GradScaler('cpu', init_scale=2.0**127)

    def step(plan, batch):
        optimizer.zero_grad()
        with plan:
            value = cross_entropy(net(batch[0]), batch[1])
        scaler.scale(10 * value).backward()
        scaler.step(optimizer)
        scaler.update()
        return value

    return step, batches_of(16, 8), net


def lbfgs():
    net = mlp(nn.Tanh)
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=3)

    def step(plan, batch):
        def closure():
            optimizer.zero_grad()
            with plan:
                value = cross_entropy(net(batch[0]), batch[1])
            value.backward()
            return value

        return optimizer.step(closure).detach()

    return step, batches_of(16, 8, batches=1), net


def average_of_weights():
    online, target = mlp(), mlp()
    optimizer = adam(online)

    def step(plan, batch):
        optimizer.zero_grad()
        with plan:
            value = mse_loss(online(batch[0]), target(batch[0]).detach()) + cross_entropy(online(batch[0]), batch[1])
        value.backward()
        optimizer.step()
        with torch.no_grad():
            for a, b in zip(target.parameters(), online.parameters()):
                a.lerp_(b, 0.01)
        return value

    return step, batches_of(16, 8), {'online': online, 'target': target}


def optimizer_before_the_last_layer():
    net = mlp()
    optimizer = adam(net)
    net[4] = nn.Linear(16, 4)
    return usual(net, optimizer), batches_of(16, 8), net


def no_zero_grad():
    net = mlp()
    optimizer = sgd(net, 1e-3)

    def step(plan, batch):
        with plan:
            value = cross_entropy(net(batch[0]), batch[1])
        value.backward()
        optimizer.step()
        return value

    return step, batches_of(16, 8), net


def without_gradients(net, change):
    """A training whose loss `change` cuts off from the parameters."""
    optimizer = adam(net)

    def step(plan, batch):
        optimizer.zero_grad()
        with plan:
            value = change(cross_entropy(net(batch[0]), batch[1])).requires_grad_()
        value.backward()
        optimizer.step()
        return value

    return step, batches_of(16, 8), net


def evaluation_mode_stays():
    net = with_dropout()
    inner, state = usual(net, adam(net)), {'step': 0}

    def step(plan, batch):
        state['step'] += 1
        if state['step'] == 11:
            net.eval()
        return inner(plan, batch)

    return step, batches_of(16, 8), net


class Stopping(torch.optim.SGD):
    """As PyTorch 115607: compiled while gradients are missing, a step leaves the parameters out for ever."""

    stopped = False

    def step(self):
        self.stopped |= all(p.grad is None for p in self.param_groups[0]['params'])
        return None if self.stopped else super().step()


def a_step_without_gradients(kind):
    net, state = mlp(), {'step': 0}
    optimizer = kind(net.parameters(), lr=0.05)

    def step(plan, batch):
        optimizer.zero_grad()
        with plan:
            value = cross_entropy(net(batch[0]), batch[1])
        state['step'] += 1
        if state['step'] != 11:
            value.backward()
        optimizer.step()
        return value

    return step, batches_of(16, 8), net


def evaluated_first(net, data=None):
    """A training whose first step evaluates before it trains."""
    inner, state = usual(net, sgd(net)), {'step': 0}

    def step(plan, batch):
        if state['step'] == 0:
            net.eval()
            with torch.no_grad(), plan:
                net(batch[0])
            net.train()
        state['step'] += 1
        return inner(plan, batch)

    return step, data or batches_of(16, 64), net


def zeroed(net):
    nn.init.zeros_(net[-1].weight)
    nn.init.zeros_(net[-1].bias)
    return net


def wide(norm):
    return nn.Sequential(norm(nn.Linear(64, 64)), nn.ReLU(), norm(nn.Linear(64, 64)), nn.ReLU(), norm(nn.Linear(64, 4)))


def optimizer_of_frozen_layers():
    net = convolutions()
    optimizer = adam(net[8])
    for number in (0, 3, 8):
        net[number].requires_grad_(False)
    return plain(net, optimizer, batches_of(8, 3, 8, 8))


SOUND = {
    'mlp': lambda: plain(net := mlp(), sgd(net)),
    'one_batch': lambda: plain(net := mlp(nn.Tanh), adam(net), batches_of(16, 8, batches=1)),
    'cnn_with_batch_norm': lambda: plain(net := convolutions(), sgd(net, 0.1, momentum=0.9), batches_of(8, 3, 8, 8)),
    'transformer': lambda: plain(net := Words(transformer()), torch.optim.AdamW(net.parameters(), lr=1e-3), words()),
    'lstm': lambda: plain(net := Words(nn.LSTM(16, 16, num_layers=2, dropout=0.1, batch_first=True)), adam(net), words()),
    'unused_rows': lambda: plain(net := Words(nn.Identity(), vocabulary=200), adam(net), words()),
    'sparse_gradients': lambda: plain(net := sparse(Words(nn.Identity())), sgd(net, 0.5), words()),
    'tied_weights': lambda: plain(net := Words(transformer(0.0), tied=True), adam(net, 1e-3), words()),
    'frozen_layers': lambda: plain(net := frozen(mlp()), adam(net)),
    'frozen_teacher': frozen_teacher,
    'accumulation': accumulation,
    'warm_up': lambda: with_schedule(net := mlp(nn.GELU), adam(net), lambda n: min(1, n / 20)),
    'decay_to_zero': lambda: with_schedule(net := mlp(), sgd(net), lambda n: max(0, 1 - n / 39)),
    'weight_decay': lambda: plain(net := mlp(), torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=0.5)),
    'gan': gan,
    'mixed_fp64': lambda: plain(net := Mixed64(), sgd(net), batches_of(16, 8, dtype=torch.float64)),
    'bf16_weights': lambda: in_bf16(net := nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).bfloat16(), sgd(net, 0.5)),
    'evaluation_between': lambda: with_evaluation(with_dropout()),
    'low_rank': lambda: plain(net := Adapted(), adam(net)),
    'loss_scaling': loss_scaling,
    'evaluation_with_gradients': lambda: with_evaluation(with_dropout(), gradients=True),
    'frozen_statistics': lambda: plain(net := nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16).eval(), nn.ReLU(), nn.Linear(16, 4)), adam(net)),
    'one_batch_on_purpose': lambda: plain(net := mlp(), adam(net), batches_of(16, 8, batches=1) * 4),
    'lbfgs': lbfgs,
    'average_of_weights': average_of_weights,
    'updates_by_hand': lambda: by_hand(lambda p: p.sub_(0.05 * p.grad)),
    'hinge_that_is_reached': lambda: plain(net := mlp(), adam(net, 0.05), loss=lambda logits, y: (0.1 - logits[:, 0]).relu().mean()),
    'weight_norm': lambda: plain(net := normed(), adam(net)),
    'experts': lambda: plain(net := Experts(), adam(net)),
    'batches_given_twice': lambda: plain(net := mlp(), adam(net), [each for each in batches_of(16, 8) for _ in range(2)]),
    'two_batches_without_end': lambda: plain(net := mlp(), adam(net), [(x.clone(), y) for x, y in batches_of(16, 8, batches=2) * 20]),
    'a_step_without_gradients': lambda: a_step_without_gradients(torch.optim.SGD),
    'head_of_zeros': lambda: with_evaluation(zeroed(mlp())),
    'evaluated_first': lambda: evaluated_first(wide(nn.utils.parametrizations.spectral_norm)),
    'evaluated_first_with_batch_norm': lambda: evaluated_first(
        nn.Sequential(nn.BatchNorm1d(64), wide(lambda layer: layer)), [(100 * x, y) for x, y in batches_of(16, 64)]
    ),
}


# Bugs that raise nothing: how the training is made, what is found, and at which name.
BUGS = {
    'optimizer_of_another_model': (lambda: plain(mlp(), adam(mlp())), 'no_optimizer', '0.bias'),
    'optimizer_before_the_last_layer': (optimizer_before_the_last_layer, 'no_optimizer', '4.bias'),
    'no_zero_grad': (no_zero_grad, 'old_gradient', '0.bias'),
    'all_frozen': (lambda: without_gradients(mlp().requires_grad_(False), lambda loss: loss), 'no_gradient', '0.bias'),
    'loss_detached': (lambda: without_gradients(mlp(), torch.Tensor.detach), 'no_gradient', '0.bias'),
    'first_layer_cut_off': (lambda: plain(net := Cut(), adam(net)), 'no_gradient', 'first.bias'),
    'evaluation_mode_stays': (evaluation_mode_stays, 'evaluation_mode', 'model'),
    'dropout_in_evaluation': (lambda: with_evaluation(with_dropout(), switch=False), 'dropout', '0.dropout_2'),
    'dropout_that_ignores_eval': (lambda: with_evaluation(Heedless()), 'dropout', 'first.dropout_2'),
    'schedule_at_zero': (lambda: with_schedule(net := mlp(), sgd(net), lambda n: max(0, 1 - n / 10)), 'zero_rate', 'optimizer'),
    'bf16_updates_vanish': (lambda: in_bf16(net := mlp().bfloat16(), adam(net, 1e-5)), 'lost_update', '0.bias'),
    'fp32_updates_vanish': (lambda: plain(net := mlp(), sgd(net, 1e-12)), 'lost_update', '0.bias'),
    'data_that_repeats': (
        lambda: plain(net := mlp(), adam(net), [(x.clone(), y) for x, y in batches_of(16, 8, batches=1) * 4]),
        'same_batch',
        'batch',
    ),
    'rows_that_repeat': (
        lambda: plain(net := mlp(), adam(net), [(x[:1].expand(16, 8).clone(), y) for x, y in batches_of(16, 8)]),
        'same_batch',
        'batch',
    ),
    'workers_with_one_seed': (
        lambda: plain(net := mlp(), adam(net), [(x.clone(), y) for x, y in batches_of(16, 8) for _ in range(2)]),
        'same_batch',
        'batch',
    ),
    'one_row_for_all': (
        lambda: plain(net := mlp(), adam(net), [(x, y, x[:1] + 1) for x, y in batches_of(16, 8)]),
        'broadcast',
        'batch',
    ),
    'optimizer_of_frozen_layers': (optimizer_of_frozen_layers, 'no_optimizer', '1.bias'),
    'optimizer_that_stops': (lambda: a_step_without_gradients(Stopping), 'no_update', 'optimizer'),
    'evaluated_before_spectral_norm_is_ready': (
        lambda: evaluated_first(wide(nn.utils.spectral_norm)),
        'evaluation_scale',
        None,
    ),
    'activation_that_dies': (lambda: plain(net := dead(mlp()), sgd(net)), 'dead', '0.relu'),
    'sigmoids_without_end': (
        lambda: plain(net := nn.Sequential(*[m for _ in range(16) for m in (nn.Linear(8, 8), nn.Sigmoid())], nn.Linear(8, 4)), sgd(net)),
        'small_gradient',
        '16.linear',
    ),
    'optimizer_never_steps': (by_hand, 'no_update', 'optimizer'),
    'mask_inverted': (lambda: plain(net := Words(Masked()), adam(net), words()), 'nan', 'body.project.softmax'),
    'learning_rate_far_too_large': (
        lambda: plain(net := mlp(nn.Identity), sgd(net, 3.0), loss=lambda logits, y: logits.square().mean()),
        ('nan', 'infinity'),  # a CPU's kernels decide which comes first
        None,
    ),
}
