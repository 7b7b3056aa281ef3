# SPDX-License-Identifier: Apache-2.0
"""Small models of other people's: each architecture of transformers and each family of timm and torchvision, with random
weights and made-up data. Nothing is downloaded: a configuration's sizes are cut, and the forward's signature says what it takes."""

import dataclasses
import inspect
import itertools
import re

import torch

import libraries

LARGEST = 30_000_000  # parameters


class NotMade(Exception):
    """Says why a model cannot be made small, or what it wants that nobody has made up."""


@dataclasses.dataclass
class Cut:
    """How a configuration is cut. Architectures differ in what they allow, so several are tried."""

    hidden: int = 32
    heads: int = 4
    layers: int = 2
    stages: bool = True  # cuts also what lists say of the stages of a convolutional net
    grouped: bool = True  # fewer heads of keys than of queries

    def sizes(self):
        """Names of whole numbers, and at most how large."""
        head = self.hidden // self.heads
        return [
            (r'n_group|topk_group', 1),
            (r'num_kv_shared_layers', 0),
            (r'.*(per_tok|per_token|top_?k|moe_k)$', 2),
            (r'.*num_.*experts|n_routed_experts', 4),
            (r'.*(head_dim|head_size|rotary_dim|kv_channels)$|d_kv', head),
            (r'.*(key_value|kv)_heads$', self.heads // 2 if self.grouped else self.heads),
            (r'.*heads?$', self.heads),
            (r'first_k_dense_replace', 1),
            (r'.*(num|n)_.*layers?$|.*_layers|n_layers?|.*depth$|num_.*blocks|n_blocks', self.layers),
            (r'.*(intermediate|ffn|mlp|inner|d_ff|feed_forward).*(size|dim)?$', 2 * self.hidden),
            (r'type_vocab_size', 2),
            (r'.*vocab(ulary)?_size.*', 128),
            (r'max_source_positions', 64),
            (r'.*max_.*position.*|n_positions|n_ctx|max_seq.*', 512),
            (r'.*image_size.*|img_size|input_size', 64),
            (r'.*patch_size', 8),
            (r'.*lora_rank$', 16),
            (r'(n|num)_queries|num_query_tokens|num_latents', 8),
            (r'(.*_)?(hidden_size|d_model|n_embd|(embed|hidden|projection|latent)_?dim|embedding_size|emb_dim|d_latents|width)|dim',
             self.hidden),
            *([(r'.*channels$', self.hidden)] if self.stages else []),
        ]


CUTS = [Cut(), Cut(stages=False, grouped=False), Cut(layers=6), Cut(hidden=128, heads=2), Cut(hidden=256, heads=2, layers=4)]
KEPT = r'.*num_channels$|in_chan.*|.*mel.*|.*num_labels|.*group_size|.*conv_dim$|.*kernel.*|.*stride.*|.*feature_size|audio_channels'


def smaller(name, value, cut):
    """The value that a field of a configuration gets."""
    if type(value) is int and re.fullmatch(r'.*token(_id|_index)?|.*_(id|index)', name):
        return value if value < 3 else 100 + value % 20  # in the vocabulary, and no word that inputs_of() says
    if type(value) is int and not re.fullmatch(KEPT, name):
        return min([value, *(most for pattern, most in cut.sizes() if re.fullmatch(pattern, name))][:2])
    if isinstance(value, (list, tuple)) and value and all(type(v) is int for v in value) and cut.stages:
        if re.fullmatch(r'.*(depths?|layers|blocks|heads)', name):
            return type(value)(min(v, 2) for v in value)
        if re.fullmatch(r'.*(hidden_sizes|embed_dims?|dims|widths)', name):
            return type(value)(min(v, 16 * (i + 1)) for i, v in enumerate(value))
    if isinstance(value, (list, tuple)) and name == 'layer_types':
        return value[: cut.layers]
    return value


def small_config(kind, cut, given):
    """A configuration of class `kind` with cut sizes; what follows from sizes follows from the cut ones."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    fields = {f.name: f.default for f in dataclasses.fields(kind) if f.default is not dataclasses.MISSING} | given
    sizes = {name: small for name, value in fields.items() if (small := smaller(name, value, cut)) != value or name in given}
    for name, spec in kind.sub_configs_defaults.items():
        inside = spec.config_class if hasattr(spec.config_class, 'model_type') else CONFIG_MAPPING[spec.model_type]
        if not spec.optional:
            sizes[name] = small_config(inside, cut, spec.init_kwargs)
    return kind(**sizes)


def whole(config, *names, otherwise):
    for each in (config, getattr(config, 'text_config', None), getattr(config, 'vision_config', None)):
        for name in names:
            value = getattr(each, name, None)
            if isinstance(value, (list, tuple)) and value and type(value[0]) is int:
                value = value[0]
            if type(value) is int and value > 0:
                return value
    return otherwise


def shapes_of(name, config):
    """Shapes that a floating-point input may have, which one is found by trial."""
    size = whole(config, 'image_size', 'img_size', otherwise=64)
    image = (whole(config, 'num_channels', 'in_channels', otherwise=3), size, size)
    mel = whole(config, 'num_mel_bins', 'feature_projection_input_dim', 'feature_size', 'input_feat_per_channel', 'input_dim', otherwise=80)
    frames = whole(config, 'max_source_positions', otherwise=0)
    patch = whole(config, 'patch_size', otherwise=8)
    return {
        'pixel_values': [(2, *image), (2, 1, *image), (2, whole(config, 'num_frames', otherwise=4), *image), (2, 2, *image), (32, image[0] * patch**2), (32, image[0] * 2 * patch**2)],
        'pixel_values_videos': [(2, 4, *image)],
        'input_values': [(2, 2000), (2, 1, 1920), (2, whole(config, 'max_length', otherwise=1024), mel)],
        'input_features': [*[(2, mel, 2 * frames)] * (frames > 0), (2, 64, mel), (2, mel, 64), (2, 1, 64, mel)],
        'past_values': [(2, whole(config, 'context_length', otherwise=32), whole(config, 'num_input_channels', otherwise=1))],
        'query_embeds': [(2, 8, whole(config, 'hidden_size', otherwise=32))],
        'inputs_embeds': [(2, 12, whole(config, 'hidden_size', 'd_model', otherwise=32))],
        'hidden_states': [(32, image[0] * 2 * patch**2), (32, image[0] * patch**2), (32, whole(config, 'hidden_size', otherwise=32))],
    }.get(name)


def inputs_of(model, config):
    """Arguments for a forward to try, by the names of its parameters: at first words alone."""
    wanted = inspect.signature(model.forward).parameters
    words = torch.randint(3, max(4, min(whole(config, 'vocab_size', otherwise=64), 60)), (2, 12))
    spoken = {'input_ids': words, 'decoder_input_ids': words.clone(), 'attention_mask': torch.ones_like(words),
              'bbox': torch.zeros(2, 12, 4, dtype=torch.long)}  # fmt: skip
    grid = torch.tensor([[1, 4, 4], [1, 4, 4]])
    if 'input_ids' in wanted:
        yield {name: value for name, value in spoken.items() if name in wanted}
        yield {'input_ids': words}
    fixed = {name: grid for name in wanted if name in ('grid_thw', 'image_grid_thw')}
    fixed |= {name: torch.ones(2, 64, dtype=torch.long) for name in wanted if name == 'input_features_mask' and _needed(wanted[name])}
    named = [name for name in wanted if shapes_of(name, config) and (name != 'inputs_embeds' or _needed(wanted[name]))]
    missing = [name for name in wanted if _needed(wanted[name]) and name not in {*named, *fixed, *spoken}]
    if missing:
        raise NotMade(f'its forward takes {missing[0]}')
    for spoken in ({}, {'input_ids': words}) if 'input_ids' in wanted else ({},):
        for shapes in itertools.islice(itertools.product(*(shapes_of(name, config) for name in named)), 12):
            yield fixed | spoken | {name: torch.randn(shape) for name, shape in zip(named, shapes)}


def _needed(parameter):
    return parameter.default is inspect.Parameter.empty and parameter.kind is not inspect.Parameter.VAR_KEYWORD


def small_transformer(kind, name, cut):
    """A model and its arguments. Raises whatever the architecture raises."""
    import transformers

    kind_of_model = getattr(transformers, name)
    config = small_config(kind, cut, {})
    with torch.device('meta'):
        count = sum(p.numel() for p in kind_of_model(config).parameters())
    if count > LARGEST:
        raise NotMade(f'{count} parameters remain')
    torch.manual_seed(0)
    model = kind_of_model(small_config(kind, cut, {})).float().train()
    first = None
    for given in inputs_of(model, config):
        if 'use_cache' in inspect.signature(model.forward).parameters:
            given['use_cache'] = False
        try:
            with torch.no_grad():
                model(**given)
            return model, given
        except Exception as raised:
            first = first or raised
    raise first or NotMade('its forward takes nothing that is made up here')


def transformers_models():
    """(name, function that makes a model and its arguments) of each architecture that AutoModel knows."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    def make(kind, classes):
        def build():
            first = None
            for cut in CUTS:
                try:
                    return small_transformer(CONFIG_MAPPING[kind], classes if isinstance(classes, str) else classes[0], cut)
                except ImportError:
                    raise
                except Exception as raised:
                    first = first or raised
            raise first

        return build

    for kind, classes in sorted(MODEL_MAPPING_NAMES.items()):
        yield kind, make(kind, classes)


def timm_models():
    import timm

    families = {}
    for name in timm.list_models():
        family = timm.models.model_entrypoint(name).__module__.rpartition('.')[2]
        families.setdefault(family, []).append(name)

    def make(family):
        def build():
            small = min(families[family], key=lambda n: (not re.search('test|atto|femto|pico|nano|tiny|xxs|_18|small|_s', n), len(n), n))
            torch.manual_seed(0)
            for how, size in (({'img_size': 64}, 64), ({}, 64), ({}, 224)):
                try:
                    model = timm.create_model(small, pretrained=False, num_classes=10, **how).train()
                    given = {'x': torch.randn(2, 3, *(model.default_cfg['input_size'][1:] if size == 224 else (size, size)))}
                    with torch.no_grad():
                        model(**given)
                    return model, given
                except Exception:  # it has no such argument, or is for one size of images
                    if size == 224:
                        raise

        return build

    for family in sorted(families):
        yield family, make(family)


def torchvision_models():
    import torchvision

    models = torchvision.models
    families = {}
    for task in (models, models.detection, models.segmentation, models.video, models.optical_flow):
        for name in models.list_models(module=task):
            builder = models.get_model_builder(name)
            families.setdefault(builder.__module__.replace('torchvision.models.', ''), []).append(name)

    def make(family):
        def build():
            torch.manual_seed(0)
            task = family.rpartition('.')[0]
            name = min(families[family], key=lambda n: (not re.search('mobilenet|small|tiny|18|_t$|mnasnet0_5|x0_5', n), len(n), n))
            if task == 'optical_flow':
                images = {'image1': torch.rand(1, 3, 128, 128), 'image2': torch.rand(1, 3, 128, 128)}
                return models.get_model(name, weights=None).train(), images | {'num_flow_updates': 2}
            if task == 'video':
                size, more = (16, 224) if 's3d' in name else (8, 64), {}
                if 'mvit' in name:
                    more = {'spatial_size': (64, 64), 'temporal_size': 8}
                return models.get_model(name, weights=None, num_classes=10, **more).train(), {'x': torch.randn(2, 3, size[0], size[1], size[1])}
            if task == '':
                more = {'image_size': 64} if 'vit_b' in name else {}
                size = 299 if 'inception' in name else 224 if 'maxvit' in name else 64
                return models.get_model(name, weights=None, num_classes=10, **more).train(), {'x': torch.randn(2, 3, size, size)}
            alone = {'weights': None, 'weights_backbone': None, 'num_classes': 5}
            if task == 'segmentation':
                return models.get_model(name, **alone).train(), {'x': torch.randn(2, 3, 64, 64)}
            model = models.get_model(name, **alone, **({} if 'ssd' in name else {'min_size': 128, 'max_size': 128})).train()
            boxes = torch.tensor([[8.0, 8, 60, 70], [30, 20, 100, 90]])
            target = {'boxes': boxes, 'labels': torch.tensor([1, 2]), 'masks': torch.ones(2, 128, 128, dtype=torch.uint8),
                      'keypoints': torch.cat([torch.full((2, 17, 2), 40.0), torch.ones(2, 17, 1)], 2)}  # fmt: skip
            return model, {'images': [torch.rand(3, 128, 128)] * 2, 'targets': [target] * 2}

        return build

    for family in sorted(families):
        yield family, make(family)


MODELS = {'transformers': transformers_models, 'timm': timm_models, 'torchvision': torchvision_models, **libraries.MODELS}
