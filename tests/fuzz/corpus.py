# SPDX-License-Identifier: Apache-2.0
# Writes a well-formed input for each fuzz target, from which the fuzzer finds its way to the malformed ones.
# Usage: corpus.py FOLDER
import gzip
import pathlib
import struct
import sys

IDX_IMAGES = struct.pack('>4I', 0x803, 2, 2, 2) + b'abcdefgh'
IDX_LABELS = struct.pack('>2I', 0x801, 2) + b'\1\2'
VALUES = b','.join([b'8', b'16'] * 32)
LINE = VALUES + b',7\n'
PLAN = b'''{"comp_plan": 1, "comp_version": "0.1.0", "plan": "011",
"hardware": {"compute_capability": 0, "isa": ["avx2"], "kind": "cpu", "name": "cpu", "threads": 2},
"model": {"fingerprint": "33682b02222891cc", "operators": 3},
"operators": [{"kind": "conv2d", "name": "stem", "precision": "fp16"}, {"kind": "batch_norm", "name": "norm", "precision": "fp32"},
{"kind": "softmax", "name": "head", "precision": "fp32"}], "precisions": ["fp32", "fp16"], "speedup": 1.25, "speedup_bounds": [1.2, "inf"]}'''
LEDGER = b'''{"comp_ledger":1,"signature":"model=1; backend=toy","started":"2026-01-31T12:00:00Z"}
{"accepted":true,"bounds":["-inf",0.02],"label":"fp32","number":0,"plan":"111","repeat":0,"sample":{"batch_seconds":[0.01,0.02],"batches":2,"curve":[2.5,"nan"],"loss":2.25,"losses":[1,2],"message":"x","peak_bytes":1024,"score":0.5,"seconds":0.03,"status":"ok"},"seconds":0.015,"stage":"baseline"}
{"accepted":false,"bounds":[0,1],"number":1,"plan":"0b1","repeat":1,"sample":{"batches":0,"loss":"nan","peak_bytes":0,"seconds":0,"status":"not_finite"},"seconds":"inf","stage":"epochs"}
{"end":true,"plan":"011","runs":2,"speedup":1.25}
'''
SEEDS = {
    'plan': [PLAN, b'{"comp_plan":1,"plan":"011"}'],
    'ledger': [LEDGER, LEDGER[:-20]],
    'idx': [IDX_IMAGES, IDX_LABELS, struct.pack('>H', len(IDX_IMAGES)) + IDX_IMAGES + IDX_LABELS],
    'cifar': [b'\3' + bytes(3072), b'\3\7' + bytes(3072), b'\3' + bytes(3072) + b'\4' + bytes(3072)],
    'text': ['Zwölf lines\n'.encode()],
    'digits': [LINE, LINE * 2, VALUES + b',1'],
    'gzip': [gzip.compress(b'some text', mtime=0) * 2, gzip.compress(bytes(200_000), mtime=0)],
}

for target, inputs in SEEDS.items():
    folder = pathlib.Path(sys.argv[1]) / target
    folder.mkdir(parents=True, exist_ok=True)
    for number, contents in enumerate(inputs):
        (folder / f'seed{number}').write_bytes(contents)
