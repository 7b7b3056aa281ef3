# SPDX-License-Identifier: Apache-2.0
"""Trainings with other people's libraries that are unlike those of timm and transformers: graphs, diffusion, segmentation,
metric learning, Gaussian processes, equivariant nets. Each is a module whose forward ends with a loss, or with outputs."""

import torch
from torch import nn


class Training(nn.Module):
    """A forward of several modules, `run(them, **given)`."""

    def __init__(self, run, **modules):
        super().__init__()
        self.parts = nn.ModuleDict(modules)
        self.run = run

    def forward(self, **given):
        return self.run(*self.parts.values(), **given)


def builder(make, **given):
    def model():
        torch.manual_seed(0)
        return make(), {name: each() if callable(each) else each for name, each in given.items()}

    return model


def torch_geometric_models():
    from torch_geometric import nn as graphs

    given = {'x': lambda: torch.randn(20, 16), 'edge_index': lambda: torch.randint(0, 20, (2, 60))}
    for name in ('GCN', 'GAT', 'GraphSAGE', 'GIN', 'EdgeCNN'):
        more = {'heads': 2} if name == 'GAT' else {}
        yield name, builder(lambda name=name, more=more: getattr(graphs, name)(16, 32, 2, 4, dropout=0.1, norm='batch_norm', **more), **given)
    layers = {
        'TransformerConv': lambda: graphs.TransformerConv(16, 4, heads=2),
        'ChebConv': lambda: graphs.ChebConv(16, 8, 3),
        'GATv2Conv': lambda: graphs.GATv2Conv(16, 4, heads=2),
        'RGCNConv': lambda: graphs.FastRGCNConv(16, 8, 3),
        'GatedGraphConv': lambda: graphs.GatedGraphConv(16, 3),
        'APPNP': lambda: graphs.APPNP(3, 0.1),
        'PointNetConv': lambda: graphs.PointNetConv(nn.Linear(19, 8)),
        'ARMAConv': lambda: graphs.ARMAConv(16, 8, 2, 2),
        'SuperGATConv': lambda: graphs.SuperGATConv(16, 4, heads=2),
    }
    for name, layer in layers.items():

        def run(conv, head, pool, x, edge_index, name=name):
            more = ()
            if name == 'RGCNConv':
                more = (torch.arange(edge_index.shape[1]) % 3,)
            out = conv(x, x[:, :3].detach(), edge_index) if name == 'PointNetConv' else conv(x, edge_index, *more)
            pooled = pool(out.relu(), torch.arange(20) // 10)
            return head(pooled).logsumexp(1)

        def make(layer=layer, run=run):
            return Training(run, conv=layer(), head=nn.LazyLinear(3), pool=graphs.aggr.MultiAggregation(['mean', 'std', 'softmax']))

        yield name, builder(lambda make=make: _ready(make(), given), **given)


def _ready(model, given):
    """Lazy layers get their sizes in a first forward."""
    with torch.no_grad():
        model(**{name: each() for name, each in given.items()})
    return model


def diffusers_models():
    import diffusers

    def image(channels=4, size=16):
        return lambda: torch.randn(2, channels, size, size)

    words = {'timestep': torch.tensor([3, 500]), 'encoder_hidden_states': lambda: torch.randn(2, 7, 16)}
    unet = {'block_out_channels': (16, 32), 'layers_per_block': 1, 'norm_num_groups': 8, 'sample_size': 16}
    yield 'UNet2DModel', builder(
        lambda: diffusers.UNet2DModel(**unet, down_block_types=('DownBlock2D', 'AttnDownBlock2D'), up_block_types=('AttnUpBlock2D', 'UpBlock2D')),
        sample=image(3), timestep=torch.tensor([3, 500]))
    yield 'UNet2DConditionModel', builder(
        lambda: diffusers.UNet2DConditionModel(
            **unet, down_block_types=('CrossAttnDownBlock2D', 'DownBlock2D'), up_block_types=('UpBlock2D', 'CrossAttnUpBlock2D'),
            cross_attention_dim=16, attention_head_dim=8),
        sample=image(), **words)
    yield 'ControlNetModel', builder(
        lambda: diffusers.ControlNetModel(
            block_out_channels=(16, 32), layers_per_block=1, norm_num_groups=8, cross_attention_dim=16, attention_head_dim=8,
            down_block_types=('CrossAttnDownBlock2D', 'DownBlock2D'), conditioning_embedding_out_channels=(8, 16)),
        sample=image(), controlnet_cond=image(3, 32), **words)
    yield 'AutoencoderKL', builder(
        lambda: diffusers.AutoencoderKL(block_out_channels=(16, 32), norm_num_groups=8,
            down_block_types=('DownEncoderBlock2D',) * 2, up_block_types=('UpDecoderBlock2D',) * 2), sample=image(3, 32))
    yield 'VQModel', builder(lambda: diffusers.VQModel(block_out_channels=(16,), norm_num_groups=8, num_vq_embeddings=32), sample=image(3, 32))
    yield 'DiTTransformer2DModel', builder(
        lambda: diffusers.DiTTransformer2DModel(num_attention_heads=2, attention_head_dim=8, in_channels=4, num_layers=2, sample_size=16, num_embeds_ada_norm=1000),
        hidden_states=image(), timestep=torch.tensor([3, 500]), class_labels=torch.tensor([1, 2]))
    yield 'FluxTransformer2DModel', builder(
        lambda: diffusers.FluxTransformer2DModel(patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16,
            num_attention_heads=2, joint_attention_dim=16, pooled_projection_dim=16, axes_dims_rope=(4, 4, 8)),
        hidden_states=lambda: torch.randn(2, 16, 4), encoder_hidden_states=lambda: torch.randn(2, 7, 16),
        pooled_projections=lambda: torch.randn(2, 16), timestep=torch.tensor([0.1, 0.7]), img_ids=torch.zeros(16, 3), txt_ids=torch.zeros(7, 3))


def segmentation_models_pytorch_models():
    import segmentation_models_pytorch as smp

    def run(net, loss, x, y):
        return loss(net(x), y)

    for name in ('Unet', 'UnetPlusPlus', 'MAnet', 'Linknet', 'FPN', 'PSPNet', 'PAN', 'DeepLabV3Plus', 'UPerNet', 'Segformer'):
        yield name, builder(
            lambda name=name: Training(run, net=getattr(smp, name)('resnet18', encoder_weights=None, classes=3), loss=smp.losses.DiceLoss('multiclass')),
            x=lambda: torch.randn(2, 3, 64, 64), y=lambda: torch.randint(0, 3, (2, 64, 64)))


def pytorch_metric_learning_models():
    from pytorch_metric_learning import losses, miners

    def run(net, loss, *rest, x, y):
        z = net(x)
        return loss(z, y, rest[0].miner(z, y)) if rest else loss(z, y)

    class Miner(nn.Module):
        def __init__(self, miner):
            super().__init__()
            self.miner = miner

    of = {
        'ArcFace': lambda: {'loss': losses.ArcFaceLoss(4, 16)},
        'ProxyAnchor': lambda: {'loss': losses.ProxyAnchorLoss(4, 16)},
        'NTXent': lambda: {'loss': losses.NTXentLoss()},
        'SupCon': lambda: {'loss': losses.SupConLoss()},
        'MultiSimilarity': lambda: {'loss': losses.MultiSimilarityLoss()},
        'Circle': lambda: {'loss': losses.CircleLoss()},
        'FastAP': lambda: {'loss': losses.FastAPLoss()},
        'Triplets, mined': lambda: {'loss': losses.TripletMarginLoss(), 'miner': Miner(miners.BatchHardMiner())},
        'SoftTriple': lambda: {'loss': losses.SoftTripleLoss(4, 16)},
    }
    for name, parts in of.items():
        yield name, builder(
            lambda parts=parts: Training(run, net=nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 16)), **parts()),
            x=lambda: torch.randn(16, 20), y=lambda: torch.arange(16) % 4)


def gpytorch_models():
    import gpytorch

    class Exact(gpytorch.models.ExactGP):
        def __init__(self, kernel, x, y):
            super().__init__(x, y, gpytorch.likelihoods.GaussianLikelihood())
            self.mean, self.kernel = gpytorch.means.ConstantMean(), kernel

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    class Deep(Exact):
        """With a net before the kernel."""

        def __init__(self, kernel, x, y):
            super().__init__(kernel, x, y)
            self.net = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2))

        def forward(self, x):
            return super().forward(self.net(x))

    class Variational(gpytorch.models.ApproximateGP):
        def __init__(self, kernel, x, y):
            chosen = gpytorch.variational.CholeskyVariationalDistribution(8)
            super().__init__(gpytorch.variational.VariationalStrategy(self, x[:8].clone(), chosen))
            self.likelihood = gpytorch.likelihoods.GaussianLikelihood()
            self.mean, self.kernel = gpytorch.means.ConstantMean(), kernel

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    def exact(model, x, y):
        return -gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)(model(x), y)

    def variational(model, x, y):
        return -gpytorch.mlls.VariationalELBO(model.likelihood, model, len(y))(model(x), y)

    def make(kind, kernel, run):
        def model():
            torch.manual_seed(0)
            x = torch.rand(40, 3)
            y = torch.sin(3 * x.sum(1)) + 0.1 * torch.randn(40)
            return Training(run, model=kind(gpytorch.kernels.ScaleKernel(kernel()), x, y)).train(), {'x': x, 'y': y}

        return model

    yield 'exact, RBF', make(Exact, gpytorch.kernels.RBFKernel, exact)
    yield 'exact, Matern', make(Exact, lambda: gpytorch.kernels.MaternKernel(1.5), exact)
    yield 'exact, after a net', make(Deep, gpytorch.kernels.RBFKernel, exact)
    yield 'variational', make(Variational, gpytorch.kernels.RBFKernel, variational)


def e3nn_models():
    from e3nn import nn as equivariant, o3

    def run(product, gate, linear, x, directions):
        edges = o3.spherical_harmonics('0e + 1o + 2e', directions, normalize=True, normalization='component')
        return linear(gate(product(x, edges))).sum(0)

    def tensor_product():
        gate = equivariant.Gate('8x0e', [torch.tanh], '4x0e', [torch.sigmoid], '4x1o')
        product = o3.FullyConnectedTensorProduct('8x0e + 4x1o', '0e + 1o + 2e', gate.irreps_in)
        return Training(run, product=product, gate=gate, linear=o3.Linear(gate.irreps_out, '2x0e + 1x1o'))

    def norm(norm, linear, x):
        return linear(norm(x))

    given = {'x': lambda: torch.randn(10, 20)}
    yield 'tensor product', builder(tensor_product, directions=lambda: torch.randn(10, 3), **given)
    yield 'BatchNorm', builder(lambda: Training(norm, norm=equivariant.BatchNorm('8x0e + 4x1o'), linear=o3.Linear('8x0e + 4x1o', '2x0e + 1x1o')), **given)
    yield 'SO(3) grid', builder(lambda: Training(lambda a, b, x: b(a(x)), a=o3.Linear('8x0e + 4x1o', '0e + 1o + 2e'),
        b=equivariant.S2Activation('0e + 1o + 2e', torch.tanh, 10)), **given)


def x_transformers_models():
    import x_transformers as xt

    variants = {
        'plain': {}, 'rotary': {'rotary_pos_emb': True}, 'alibi': {'alibi_pos_bias': True}, 'qk norm': {'attn_qk_norm': True},
        'GLU': {'ff_glu': True, 'ff_swish': True}, 'memory': {'attn_num_mem_kv': 4}, 'talking heads': {'attn_pre_talking_heads': True},
        'RMSNorm, sandwich': {'use_rmsnorm': True, 'sandwich_norm': True}, 'flash': {'attn_flash': True}, 'T5 bias': {'rel_pos_bias': True},
        'one head of keys': {'attn_one_kv_head': True}, 'hyper connections': {'num_residual_streams': 2}, 'sparse': {'attn_sparse_topk': 4},
    }  # fmt: skip
    for name, more in variants.items():
        yield name, builder(
            lambda more=more: xt.TransformerWrapper(
                num_tokens=99, max_seq_len=32, attn_layers=xt.Decoder(dim=32, depth=2, heads=2, attn_dim_head=16, layer_dropout=0.0, **more)),
            x=lambda: torch.randint(0, 99, (2, 12)))


def lightly_models():
    from lightly import loss as losses
    from lightly.models.modules import heads

    def backbone():
        return nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())

    def siamese(net, project, predict, loss, x, y):
        a, b = project(net(x)), project(net(y))
        return loss(a.detach(), predict(b)) + loss(b.detach(), predict(a))

    def twins(net, project, loss, x, y):
        return loss(project(net(x)), project(net(y)))

    def dino(net, project, loss, x, y):
        return loss([project(net(x)).detach()], [project(net(x)), project(net(y))], epoch=1)

    images = {'x': lambda: torch.randn(8, 3, 16, 16), 'y': lambda: torch.randn(8, 3, 16, 16)}
    yield 'SimSiam', builder(lambda: Training(siamese, net=backbone(), project=heads.SimSiamProjectionHead(32, 32, 16),
        predict=heads.SimSiamPredictionHead(16, 8, 16), loss=losses.NegativeCosineSimilarity()), **images)
    of = {'SimCLR': losses.NTXentLoss, 'Barlow Twins': losses.BarlowTwinsLoss, 'VICReg': losses.VICRegLoss, 'DCL': losses.DCLLoss}
    for name, loss in of.items():
        yield name, builder(lambda loss=loss: Training(twins, net=backbone(), project=heads.BarlowTwinsProjectionHead(32, 32, 16), loss=loss()), **images)
    yield 'DINO', builder(lambda: Training(dino, net=backbone(), project=heads.DINOProjectionHead(32, 32, 16, 20), loss=losses.DINOLoss(20)), **images)


MODELS = {name.removesuffix('_models'): each for name, each in list(globals().items()) if name.endswith('_models')}
