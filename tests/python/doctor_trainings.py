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


# Sound ones.


def of_mlp():
    net = mlp()
    return usual(net, sgd(net)), batches_of(16, 8), net


def of_one_batch():
    net = mlp(nn.Tanh)
    return usual(net, adam(net)), batches_of(16, 8, batches=1), net


def of_cnn_with_batch_norm():
    def block(channels):
        return nn.Conv2d(channels, 8, 3), nn.BatchNorm2d(8), nn.ReLU()

    net = nn.Sequential(*block(3), *block(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    return usual(net, sgd(net, 0.1, momentum=0.9)), [(x, y) for x, y in batches_of(8, 3, 8, 8)], net


def of_transformer():
    net = Words(transformer())
    return usual(net, torch.optim.AdamW(net.parameters(), lr=1e-3)), words(), net


def of_lstm():
    net = Words(nn.LSTM(16, 16, num_layers=2, dropout=0.1, batch_first=True))
    return usual(net, adam(net)), words(), net


def of_unused_rows():
    net = Words(nn.Identity(), vocabulary=200)
    return usual(net, adam(net)), words(), net


def of_sparse_gradients():
    net = Words(nn.Identity())
    net.embedding.sparse = True
    return usual(net, sgd(net, 0.5)), words(), net


def of_tied_weights():
    net = Words(transformer(0.0), tied=True)
    return usual(net, adam(net, 1e-3)), words(), net


def of_frozen_layers():
    net = mlp()
    net[0].requires_grad_(False)
    return usual(net, adam(net)), batches_of(16, 8), net


def of_frozen_teacher():
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


def of_accumulation():
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


def with_schedule(net, optimizer, rate):
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    inner = usual(net, optimizer)

    def step(plan, batch):
        value = inner(plan, batch)
        schedule.step()
        return value

    return step, batches_of(16, 8), net


def of_warm_up():
    net = mlp(nn.GELU)
    return with_schedule(net, adam(net), lambda n: min(1, n / 20))


def of_decay_to_zero():
    net = mlp()
    return with_schedule(net, sgd(net), lambda n: max(0, 1 - n / 39))


def of_weight_decay():
    net = mlp()
    return usual(net, torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=0.5)), batches_of(16, 8), net


def of_gan():
    generator = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8))
    critic = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    of_generator, of_critic = adam(generator, 1e-3), adam(critic, 1e-3)

    def step(plan, batch):
        ones, zeros = torch.ones(16, 1), torch.zeros(16, 1)
        of_critic.zero_grad()
        with plan('critic'):
            made = generator(torch.randn(16, 4))
            loss = binary_cross_entropy_with_logits(critic(batch[0]), ones)
            loss = loss + binary_cross_entropy_with_logits(critic(made.detach()), zeros)
        loss.backward()
        of_critic.step()
        of_generator.zero_grad()
        with plan('generator'):
            value = binary_cross_entropy_with_logits(critic(made), ones)
        value.backward()
        of_generator.step()
        return value

    return step, batches_of(16, 8), {'generator': generator, 'critic': critic}


class Mixed64(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16).double(), nn.Linear(16, 4)

    def forward(self, x):
        return self.second(self.first(x).tanh().float())


def of_mixed_fp64():
    net = Mixed64()
    return usual(net, sgd(net)), batches_of(16, 8, dtype=torch.float64), net


def of_bf16_weights():
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(torch.bfloat16)
    return usual(net, sgd(net, 0.5), lambda made, y: cross_entropy(made.float(), y)), [(x.bfloat16(), y) for x, y in batches_of(16, 8)], net


def evaluated_between(net):
    """A training that evaluates the model after each step."""
    inner = usual(net, adam(net))

    def step(plan, batch):
        value = inner(plan, batch)
        net.eval()
        with torch.no_grad(), plan:
            net(batch[0])
        net.train()
        return value

    return step, batches_of(16, 8), net


def of_evaluation_between():
    return evaluated_between(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4)))


class Adapted(nn.Module):
    """A frozen layer and a product of two small ones, the second of which begins at 0."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(8, 4).requires_grad_(False)
        self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 4, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def of_low_rank():
    net = Adapted()
    return usual(net, adam(net)), batches_of(16, 8), net


def of_loss_scaling():
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


def of_evaluation_with_gradients():
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))
    inner = usual(net, adam(net))

    def step(plan, batch):
        value = inner(plan, batch)
        net.eval()
        with plan:
            net(batch[0])
        net.train()
        return value

    return step, batches_of(16, 8), net


def of_frozen_statistics():
    net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16).eval(), nn.ReLU(), nn.Linear(16, 4))
    return usual(net, adam(net)), batches_of(16, 8), net


def of_one_batch_on_purpose():
    net = mlp()
    return usual(net, adam(net)), batches_of(16, 8, batches=1) * 4, net


def of_lbfgs():
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


def of_average_of_weights():
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


def of_updates_by_hand():
    net = mlp()

    def step(plan, batch):
        net.zero_grad()
        with plan:
            value = cross_entropy(net(batch[0]), batch[1])
        value.backward()
        with torch.no_grad():
            for p in net.parameters():
                p -= 0.05 * p.grad
        return value

    return step, batches_of(16, 8), net


def of_hinge_that_is_reached():
    net = mlp()
    return usual(net, adam(net, 0.05), lambda made, y: (0.1 - made[:, 0]).relu().mean()), batches_of(16, 8), net


def of_weight_norm():
    net = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(8, 16)), nn.ReLU(), nn.utils.parametrizations.spectral_norm(nn.Linear(16, 4)))
    return usual(net, adam(net)), batches_of(16, 8), net


class Experts(nn.Module):
    """Two experts, the second of which gets few rows, and a head that is not used."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(8, 4) for _ in range(2))
        self.unused = nn.Linear(8, 4)

    def forward(self, x):
        chosen = x[:, 0] > 1
        made = x.new_zeros(x.shape[0], 4)
        for n, expert in enumerate(self.experts):
            rows = (chosen == bool(n)).nonzero()[:, 0]
            made = made.index_add(0, rows, expert(x[rows]))
        return made


def of_experts():
    net = Experts()
    return usual(net, adam(net)), batches_of(16, 8), net


SOUND = {name[3:]: made for name, made in list(globals().items()) if name.startswith('of_')}

# Bugs that raise nothing. Each: what is found, and at which name.


def optimizer_of_another_model():
    net = mlp()
    return usual(net, adam(mlp())), batches_of(16, 8), net


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


def all_frozen():
    net = mlp().requires_grad_(False)
    optimizer = adam(net)

    def step(plan, batch):
        with plan:
            value = cross_entropy(net(batch[0]), batch[1]).requires_grad_()
        value.backward()
        optimizer.step()
        return value

    return step, batches_of(16, 8), net


def loss_detached():
    net = mlp()
    optimizer = adam(net)

    def step(plan, batch):
        optimizer.zero_grad()
        with plan:
            value = cross_entropy(net(batch[0]), batch[1]).detach().requires_grad_()
        value.backward()
        optimizer.step()
        return value

    return step, batches_of(16, 8), net


class TwoLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)


class Cut(TwoLayers):
    def forward(self, x):
        return self.second(self.first(x).relu().data)


def first_layer_cut_off():
    net = Cut()
    return usual(net, adam(net)), batches_of(16, 8), net


def evaluation_mode_stays():
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))
    inner, state = usual(net, adam(net)), {'step': 0}

    def step(plan, batch):
        state['step'] += 1
        if state['step'] == 11:
            net.eval()
        return inner(plan, batch)

    return step, batches_of(16, 8), net


def dropout_in_evaluation():
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))
    inner = usual(net, adam(net))

    def step(plan, batch):
        value = inner(plan, batch)
        with torch.no_grad(), plan:
            net(batch[0])
        return value

    return step, batches_of(16, 8), net


class Heedless(TwoLayers):
    """As transformers 33844: the function drops values, whatever mode the module is in."""

    def forward(self, x):
        return self.second(dropout(self.first(x), 0.1))


def dropout_that_ignores_eval():
    return evaluated_between(Heedless())


def schedule_at_zero():
    net = mlp()
    return with_schedule(net, sgd(net), lambda n: max(0, 1 - n / 10))


def bf16_updates_vanish():
    net = mlp().to(torch.bfloat16)
    return usual(net, adam(net, 1e-5), lambda made, y: cross_entropy(made.float(), y)), [(x.bfloat16(), y) for x, y in batches_of(16, 8)], net


def fp32_updates_vanish():
    net = mlp()
    return usual(net, sgd(net, 1e-12)), batches_of(16, 8), net


def data_that_repeats():
    net = mlp()
    return usual(net, adam(net)), [(x.clone(), y) for x, y in batches_of(16, 8, batches=1) * 4], net


def rows_that_repeat():
    net = mlp()
    return usual(net, adam(net)), [(x[:1].expand(16, 8).clone(), y) for x, y in batches_of(16, 8)], net


def activation_that_dies():
    net = mlp()
    with torch.no_grad():
        net[0].bias.fill_(-100)
    return usual(net, sgd(net)), batches_of(16, 8), net


def sigmoids_without_end():
    net = nn.Sequential(*[m for _ in range(16) for m in (nn.Linear(8, 8), nn.Sigmoid())], nn.Linear(8, 4))
    return usual(net, sgd(net)), batches_of(16, 8), net


def optimizer_never_steps():
    net = mlp()

    def step(plan, batch):
        net.zero_grad()
        with plan:
            value = cross_entropy(net(batch[0]), batch[1])
        value.backward()
        return value

    return step, batches_of(16, 8), net


class Masked(nn.Module):
    """A causal mask turned round, by -inf: the last word may look at none."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(16, 16)

    def forward(self, x):
        mask = torch.full((x.shape[1], x.shape[1]), -torch.inf).tril()
        return (self.project(x) @ x.transpose(1, 2) + mask).softmax(-1) @ x


def mask_inverted():
    net = Words(Masked())
    return usual(net, adam(net)), words(), net


def learning_rate_far_too_large():
    net = mlp(nn.Identity)
    return usual(net, sgd(net, 3.0), lambda made, y: made.square().mean()), batches_of(16, 8), net


BUGS = {
    optimizer_of_another_model: ('no_optimizer', '0.bias'),
    optimizer_before_the_last_layer: ('no_optimizer', '4.bias'),
    no_zero_grad: ('old_gradient', '0.bias'),
    all_frozen: ('no_gradient', '0.bias'),
    loss_detached: ('no_gradient', '0.bias'),
    first_layer_cut_off: ('no_gradient', 'first.bias'),
    evaluation_mode_stays: ('evaluation_mode', 'model'),
    dropout_in_evaluation: ('dropout', '0.dropout_2'),
    dropout_that_ignores_eval: ('dropout', 'first.dropout_2'),
    schedule_at_zero: ('zero_rate', 'optimizer'),
    bf16_updates_vanish: ('lost_update', '0.bias'),
    fp32_updates_vanish: ('lost_update', '0.bias'),
    data_that_repeats: ('same_batch', 'batch'),
    rows_that_repeat: ('same_batch', 'batch'),
    activation_that_dies: ('dead', '0.relu'),
    sigmoids_without_end: ('small_gradient', '16.linear'),
    optimizer_never_steps: ('no_update', 'optimizer'),
    mask_inverted: ('nan', 'body.project.softmax'),
    learning_rate_far_too_large: ('nan', None),
}
