# SPDX-License-Identifier: Apache-2.0
"""Small models of other people's: each architecture of transformers and each family of timm and torchvision, with random
weights and made-up data. Nothing is downloaded: a configuration's sizes are cut, and the forward's signature says what it takes."""

import inspect
import re

import torch

SIZES = [  # of a configuration's whole numbers: names, and at most how large
    (r'.*(experts_per_tok|top_k|topk|moe_k)$', 2),
    (r'.*(num|n)_.*experts$|n_group|num_experts', 4),
    (r'.*head_dim$|.*kv_channels', 8),
    (r'.*(key_value|kv)_heads$', 2),
    (r'.*heads?$', 4),
    (r'.*(num|n)_.*layers?$|(num|n)_layers?|(en|de)coder_layers|.*depth$|.*_layers|n_blocks|num_.*blocks', 2),
    (r'.*(intermediate|ffn|mlp|inner|d_ff|feed_forward).*(size|dim)?$', 64),
    (r'.*vocab(ulary)?_size.*', 128),
    (r'.*max_.*position.*|n_positions|n_ctx|max_seq_len.*', 128),
    (r'.*image_size.*|img_size|input_size', 64),
    (r'.*patch_size.*', 8),
    (r'.*lora_rank$', 16),
    (r'(n|num)_queries|num_query_tokens|num_latents', 8),
    (r'.*(hidden_size|d_model|n_embd|embed_dim|embedding_size|emb_dim|d_latents|_width|width)$|.*hidden_dim|dim|.*_dim', 32),
    (r'.*channels$', 32),
]
KEPT = r'.*num_channels$|in_chan.*|.*_id$|.*mel.*|num_labels|.*group_size|.*conv_dim$|.*kernel.*|.*stride.*|.*feature_size'


def cut(config, seen=()):
    """Cuts the sizes of a configuration, and of those inside it."""
    from transformers import PretrainedConfig

    for name, value in list(vars(config).items()):
        if isinstance(value, PretrainedConfig):
            if id(value) not in seen:
                cut(value, (*seen, id(value)))
            continue
        if isinstance(value, bool) or name.startswith('_'):
            continue
        try:
            if isinstance(value, int) and re.fullmatch(r'.*token(_id|_index)?$', name) and value > 120:
                setattr(config, name, value % 100)
            elif isinstance(value, int) and not re.fullmatch(KEPT, name):
                for pattern, most in SIZES:
                    if re.fullmatch(pattern, name):
                        setattr(config, name, min(value, most))
                        break
            elif isinstance(value, (list, tuple)) and value and all(type(v) is int for v in value):
                if re.fullmatch(r'.*depths?$|.*layers$|num_blocks', name):
                    setattr(config, name, type(value)(min(v, 2) for v in value))
                elif re.fullmatch(r'.*(hidden_sizes|embed_dims?|dims|channels|widths)$', name):
                    setattr(config, name, type(value)(min(v, 16 * (i + 1)) for i, v in enumerate(value)))
            elif isinstance(value, (list, tuple)) and name == 'layer_types':
                setattr(config, name, value[:2])
        except Exception:
            pass  # a property that follows from others
    return config


def whole(config, *names, otherwise):
    for each in (config, getattr(config, 'text_config', None), getattr(config, 'vision_config', None)):
        for name in names:
            value = getattr(each, name, None)
            if isinstance(value, (list, tuple)) and value and type(value[0]) is int:
                value = value[0]
            if type(value) is int and value > 0:
                return value
    return otherwise


def inputs_of(model, config, words_alone):
    """Arguments for a forward, by the names of its parameters. `words_alone`: no images and no sound if it takes words."""
    wanted = inspect.signature(model.forward).parameters
    if words_alone and 'input_ids' in wanted:
        wanted = {n: p for n, p in wanted.items() if n in ('input_ids', 'decoder_input_ids', 'attention_mask', 'bbox')}
    vocabulary = whole(config, 'vocab_size', otherwise=64)
    size = whole(config, 'image_size', 'img_size', otherwise=32)
    channels = whole(config, 'num_channels', 'in_channels', 'num_channels', otherwise=3)
    words = torch.randint(3, max(4, min(vocabulary, 60)), (2, 12))
    given = {}
    for name, parameter in wanted.items():
        needed = parameter.default is inspect.Parameter.empty
        if name in ('input_ids', 'decoder_input_ids'):
            given[name] = words.clone()
        elif name == 'attention_mask' and 'input_ids' in wanted:
            given[name] = torch.ones_like(words)
        elif name == 'pixel_values':
            given[name] = torch.randn(2, channels, size, size)
        elif name in ('input_values',):
            given[name] = torch.randn(2, 2000)
        elif name == 'input_features':
            mel = whole(config, 'num_mel_bins', 'feature_size', 'input_feat_per_channel', otherwise=80)
            frames = 2 * whole(config, 'max_source_positions', otherwise=20)
            given[name] = torch.randn(2, mel, frames) if 'whisper' in config.model_type else torch.randn(2, 40, mel)
        elif name == 'bbox':
            given[name] = torch.zeros(2, 12, 4, dtype=torch.long)
    return given


def transformers_models():
    """(name, function that makes a model and its arguments) of each architecture that AutoModel knows."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    def make(kind, classes):
        def made():
            config = cut(CONFIG_MAPPING[kind]())
            config.use_cache = False
            name = classes if isinstance(classes, str) else classes[0]
            torch.manual_seed(0)
            model = getattr(transformers, name)(config).float().train()
            for words_alone in (True, False):
                given = inputs_of(model, config, words_alone)
                try:
                    model(**given)
                    return model, given
                except Exception:
                    if not words_alone:
                        raise

        return made

    for kind, classes in sorted(MODEL_MAPPING_NAMES.items()):
        yield kind, make(kind, classes)


def timm_models():
    import timm

    families = {}
    for name in timm.list_models():
        family = timm.models.model_entrypoint(name).__module__.rpartition('.')[2]
        families.setdefault(family, []).append(name)

    def make(family):
        def made():
            small = sorted(families[family], key=lambda n: (not re.search('test|atto|femto|pico|nano|tiny|xxs|_18|small|_s', n), len(n)))
            torch.manual_seed(0)
            model = timm.create_model(small[0], pretrained=False, num_classes=10).train()
            size = model.default_cfg.get('input_size', (3, 64, 64)) if model.default_cfg.get('fixed_input_size') else (3, 64, 64)
            return model, {'x': torch.randn(2, *size)}

        return made

    for family in sorted(families):
        yield family, make(family)


def torchvision_models():
    import torchvision

    families = {}
    for name in torchvision.models.list_models(module=torchvision.models):
        builder = torchvision.models.get_model_builder(name)
        families.setdefault(builder.__module__.rpartition('.')[2], []).append(name)

    def make(names):
        def made():
            torch.manual_seed(0)
            name = names[0]
            size = 299 if 'inception' in name else 224 if 'vit' in name else 64
            return torchvision.models.get_model(name, weights=None, num_classes=10).train(), {'x': torch.randn(2, 3, size, size)}

        return made

    for family, names in sorted(families.items()):
        yield family, make(names)


MODELS = {'transformers': transformers_models, 'timm': timm_models, 'torchvision': torchvision_models}
