# SPDX-License-Identifier: Apache-2.0
# Writes a well-formed input for each fuzz target, from which the fuzzer finds its way to the malformed ones.
# Usage: corpus.py FOLDER
import base64
import gzip
import io
import pathlib
import struct
import sys
import zipfile

IDX_IMAGES = struct.pack('>4I', 0x803, 2, 2, 2) + b'abcdefgh'
IDX_LABELS = struct.pack('>2I', 0x801, 2) + b'\1\2'
VALUES = b','.join([b'8', b'16'] * 32)
LINE = VALUES + b',7\n'
PLAN = b'''{"comp_plan": 1, "comp_version": "0.1.0", "plan": "011",
"hardware": {"compute_capability": 0, "isa": ["avx2"], "kind": "cpu", "name": "cpu", "threads": 2},
"model": {"fingerprint": "33682b02222891cc", "operators": 3},
"operators": [{"kind": "conv2d", "name": "stem", "precision": "fp16"}, {"kind": "batch_norm", "name": "norm", "precision": "fp32"},
{"kind": "softmax", "name": "head", "precision": "fp32"}], "precisions": ["fp32", "fp16"], "speedup": 1.25, "speedup_bounds": [1.2, "inf"]}'''
LEDGER = b'''{"comp_ledger":2,"signature":"model=1; backend=toy","started":"2026-01-31T12:00:00Z"}
{"accepted":true,"bounds":["-inf",0.02],"label":"fp32","number":0,"plan":"111","repeat":0,"sample":{"batch_seconds":[0.01,0.02],"batches":2,"curve":[2.5,"nan"],"loss":2.25,"losses":[1,2],"message":"x","peak_bytes":1024,"score":0.5,"seconds":0.03,"status":"ok"},"seconds":0.015,"stage":"baseline"}
{"accepted":false,"bounds":[0,1],"number":1,"plan":"0b1","repeat":1,"sample":{"batches":0,"loss":"nan","peak_bytes":0,"seconds":0,"status":"not_finite"},"seconds":"inf","stage":"epochs"}
{"end":true,"plan":"011","runs":2,"speedup":1.25}
'''
LINQS = b'p7\t0\t0\tneural\np3\t1\t1\tagents\n\0p7\tp3\np3\tp7\n'
SQUAD = '''{"version": "v2.0", "data": [{"paragraphs": [{"context": "äa b. ab", "qas": [
{"id": "a", "question": "b?", "answers": [{"text": "b", "answer_start": 3}]}, {"id": "b", "question": "a", "is_impossible": true}]}]}]}'''.encode()
# 8 x 8 grey pixels, as libjpeg-turbo writes them.
JPEG = base64.b64decode((
    '/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQ'
    'EBAQEBAQH/wAALCAAIAAgBAREA/8QAHwAAAQUBAQEBAQEAAAAAAAAAAAECAwQFBgcICQoL/8QAtRAAAgEDAwIEAwUFBAQAAAF9AQIDAAQRBRIh'
    'MUEGE1FhByJxFDKBkaEII0KxwRVS0fAkM2JyggkKFhcYGRolJicoKSo0NTY3ODk6Q0RFRkdISUpTVFVWV1hZWmNkZWZnaGlqc3R1dnd4eXqDhI'
    'WGh4iJipKTlJWWl5iZmqKjpKWmp6ipqrKztLW2t7i5usLDxMXGx8jJytLT1NXW19jZ2uHi4+Tl5ufo6erx8vP09fb3+Pn6/9oACAEBAAA/APzP'
    'r//Z'))


def npy(kind, shape, values):
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + '\n'
    return b'\x93NUMPY\1\0' + struct.pack('<H', len(header)) + header.encode() + values


def npz():
    arrays = {'adj_shape': ('<i8', '(2,)', struct.pack('<2q', 2, 2)), 'adj_indptr': ('<i4', '(3,)', struct.pack('<3i', 0, 1, 1)),
              'adj_indices': ('<i4', '(1,)', struct.pack('<i', 1)), 'attr_shape': ('<i8', '(2,)', struct.pack('<2q', 2, 1)),
              'attr_indptr': ('<i4', '(3,)', struct.pack('<3i', 0, 0, 1)), 'attr_indices': ('<i4', '(1,)', struct.pack('<i', 0)),
              'attr_data': ('<f4', '(1,)', struct.pack('<f', 1)), 'labels': ('|i1', '(2,)', b'\0\1')}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, 'w') as archive:
        for name, parts in arrays.items():
            archive.writestr(zipfile.ZipInfo(name + '.npy', (1980, 1, 1, 0, 0, 0)), npy(*parts))
    return packed.getvalue()


def safetensors(header, values=b''):
    return struct.pack('<Q', len(header)) + header + values


TENSORS = b'{"__metadata__":{"a":"b"},"w":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},"x":{"dtype":"F32","shape":[],"data_offsets":[8,12]}}'
PROGRESS = b'''{"audits":{"acquittals":0,"began":0,"next":4},"baseline_loss":"nan","batches_per_epoch":4,"begun":{"batches":1,"loss":1,"peak_bytes":0,
"seconds":0,"status":"ok"},"higher_is_better":false,"ladder":["0b","11"],"normal":{"epochs":[[0,1]],"leeway":1,"window":1},"rung":1,"so_far":{"compared":0,
"epochs":[{"batches":4,"loss":1,"peak_bytes":0,"seconds":1,"status":"ok"}],"fallbacks":[{"epoch":0,"from":"0b","message":"","to":"11","why":"diverged"}],
"warnings":["w"]},"tolerance":0.01}'''

SEEDS = {
    'training': [safetensors(TENSORS, bytes(12)), PROGRESS],
    'graph': [LINQS],
    'jpeg': [JPEG],
    'npz': [npz(), npy('<f4', '(2,)', bytes(8))],
    'squad': [SQUAD, '[PAD]\n[UNK]\n[CLS]\n[SEP]\n##é\n'.encode(), 'aé 中b.'.encode()],
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
