# SPDX-License-Identifier: Apache-2.0
"""python -m comp show plan.json"""

import sys
from collections.abc import Callable

# comp of the C++ examples (examples/comp.cpp) has the same verbs, with the same words. By verb: what it takes, the least
# and the most of these, and what it does.
VERBS: dict[str, tuple[str, int, int, str]] = {
    "show": ("PLAN", 1, 1, "What a plan file says"),
    "compare": ("RUN RUN ...", 2, 64, "What differs between two plan files, or between searches"),
    "doctor": ("STEP [STEP]", 1, 2, "What is wrong in a saved step of comp.doctor, or where two part"),
}
TRAIN = "train is not here (your loop trains): use comp.autocast in it, or comp train of the C++ examples"
USAGE = (
    "Says what comp's files say. comp of the C++ examples has the same verbs.\n"
    + "".join(f"  python -m comp {f'{verb} {takes}':<19} {does}\n" for verb, (takes, _, _, does) in VERBS.items())
    + TRAIN
)


def main(arguments: list[str]) -> int:
    if arguments in (["-h"], ["--help"], []):
        print(USAGE)
        return 0 if arguments else 2
    verb, *files = arguments
    if verb == "train":
        print(f"comp: {TRAIN}", file=sys.stderr)
        return 2
    if verb not in VERBS or not VERBS[verb][1] <= len(files) <= VERBS[verb][2]:
        print(USAGE, file=sys.stderr)
        return 2
    import comp
    from comp import _comp

    say: dict[str, Callable[[], object]] = {
        "show": lambda: comp.load(files[0]),
        "compare": lambda: _comp.compare_files(files).removesuffix("\n"),
        "doctor": lambda: comp.doctor.load(files[0]) if len(files) == 1 else comp.doctor.compare(files[0], files[1]),
    }
    try:
        print(say[verb]())
    except comp.Error as error:
        print(f"comp: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
