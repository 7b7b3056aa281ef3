# SPDX-License-Identifier: Apache-2.0
# Puts LibTorch into a folder: headers and libraries of the torch wheel, and those CUDA libraries that they need and this
# machine lacks (the wheel's libtorch_cpu needs libcudart and libcupti even without a GPU). What a CUDA toolkit
# has is linked to, the rest comes from the wheels that torch's own metadata names. Nothing of it is imported or run.
# The folder appears when all is there, or not at all. x86_64 and aarch64 Linux.
# Usage: get_torch.py VERSION FOLDER [cuda]      (cuda: also torch's CUDA part, some 3 GB with its libraries)
import glob
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import zipfile

CUDA_PART = re.compile(r'lib(torch_cuda\w*|torch|c10_cuda|torch_nvshmem|caffe2_nvrtc)\.so')
NOT_NEEDED = re.compile(r'lib(torch_python|torch_global_deps|shm)\.so|libshm\w*/')
TOOLKIT = ['/usr/local/cuda*/lib64', '/usr/local/cuda*/targets/*/lib', '/usr/local/cuda*/extras/CUPTI/lib64']

# Which part of the cuda-toolkit wheels, or which wheel of its own, has a library.
PARTS = {'libcudart': 'cudart', 'libcupti': 'cupti', 'libcublas': 'cublas', 'libcublasLt': 'cublas', 'libcufft': 'cufft',
         'libcufile': 'cufile', 'libcurand': 'curand', 'libcusolver': 'cusolver', 'libcusparse': 'cusparse',
         'libnvJitLink': 'nvjitlink', 'libnvrtc': 'nvrtc', 'libnvToolsExt': 'nvtx'}
WHEELS = {'libcudnn': 'nvidia-cudnn', 'libcusparseLt': 'nvidia-cusparselt', 'libnccl': 'nvidia-nccl',
          'libnvshmem_host': 'nvidia-nvshmem'}


def download(to, *what):
    """The wheels that pip fetches, in the folder `to`."""
    subprocess.run([sys.executable, '-m', 'pip', '--quiet', 'download', '--disable-pip-version-check',
                    '--only-binary=:all:', '--no-cache-dir', '--dest', to, *what], check=True)
    return sorted(to.glob('*.whl'))


def unpack(wheel, into, wanted):
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(into, [name for name in packed.namelist() if wanted(name)])
    wheel.unlink()


def of_torch(with_cuda):
    def wanted(name):
        if re.match(r'torch-[^/]*\.dist-info/(METADATA|licenses/)', name) or name.startswith('torch/include/'):
            return True
        library = name.removeprefix('torch/lib/')
        return library != name and not NOT_NEEDED.match(library) and (with_cuda or not CUDA_PART.match(library))
    return wanted


def of_cuda(name):
    return re.match(r'nvidia/.*/lib/[^/]*\.so|.*\.dist-info/licenses/', name) is not None


def not_found(folder):
    """Names of libraries that those in the folder need and the loader does not find."""
    names = set()
    for library in sorted(folder.glob('torch/lib/*.so*')) + sorted(folder.glob('nvidia/*/lib/*.so*')):
        needs = subprocess.run(['ldd', library], capture_output=True, text=True).stdout
        names |= set(re.findall(r'^\s*(\S+) => not found', needs, re.MULTILINE))
    return names - {'libcuda.so.1'}  # the driver's


def link_from_toolkit(name, folder):
    """Whether a CUDA toolkit of this machine has it; then a link to it stands beside torch's libraries."""
    for there in (found for pattern in TOOLKIT for found in sorted(glob.glob(f'{pattern}/{name}'))):
        (folder / 'torch/lib' / name).symlink_to(os.path.realpath(there))
        return True
    return False


def requirement(name, metadata):
    """What to ask pip for, in the version that torch was built with."""
    stem = name.split('.so')[0]
    toolkit = re.search(r'^Requires-Dist: cuda-toolkit\[[^]]*\]\s*==\s*([\d.]+)', metadata, re.MULTILINE)
    if stem in PARTS and toolkit:
        return f'cuda-toolkit[{PARTS[stem]}]=={toolkit[1]}'
    own = stem in WHEELS and re.search(rf'^Requires-Dist: ({WHEELS[stem]}\S*\s*==\s*[\w.]+)', metadata, re.MULTILINE)
    if own:
        return own[1]
    sys.exit(f'{name} is missing (torch needs it, its metadata names no wheel that has it): install it where the '
             'loader looks')


def complete(folder):
    """Fetches what is not found until nothing is: what is fetched may need more."""
    metadata = next(folder.glob('torch-*.dist-info/METADATA')).read_text()
    asked = set()
    while names := [name for name in sorted(not_found(folder)) if not link_from_toolkit(name, folder)]:
        wanted = {requirement(name, metadata) for name in names}
        if wanted <= asked:
            sys.exit(f'{", ".join(names)} still missing (the wheels {", ".join(sorted(asked))} lack them): install them '
                     'where the loader looks')
        asked |= wanted
        for wheel in download(folder, *sorted(wanted)):
            unpack(wheel, folder, of_cuda)


def clear_leftovers(parent):
    """What fetches left that were killed; one that still runs keeps its folder."""
    for part in parent.glob('.part-*'):
        if not pathlib.Path('/proc', part.name.removeprefix('.part-')).exists():
            shutil.rmtree(part)


def main():
    version, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    clear_leftovers(folder.parent)
    part = folder.parent / f'.part-{os.getpid()}'
    part.mkdir(parents=True)
    try:
        wheel, = download(part, '--no-deps', '--python-version', '311', '--platform',
                          f'manylinux_2_28_{platform.machine()}', f'torch=={version}')
        unpack(wheel, part, of_torch(with_cuda='cuda' in sys.argv[3:]))
        complete(part)
        if folder.exists():
            shutil.rmtree(folder)
        part.rename(folder)
    except (subprocess.CalledProcessError, zipfile.BadZipFile, OSError) as failed:
        sys.exit(f'torch {version} was not fetched: {failed}')
    finally:
        shutil.rmtree(part, ignore_errors=True)


if __name__ == '__main__':
    main()
