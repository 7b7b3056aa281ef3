# SPDX-License-Identifier: Apache-2.0
"""python -m comp show plan.json"""

import sys

USAGE = (
    "usage: python -m comp show PLAN.json        what a plan file says\n"
    "       python -m comp compare A.json B.json what differs between plan files\n"
    "       python -m comp doctor RUN.json       what comp.doctor saw, and what is wrong in it\n"
    "       python -m comp doctor A.json B.json  where two runs part\n"
    "Searches side by side: comp compare, of the C++ examples"
)


def main(arguments: list[str]) -> int:
    if arguments in (["-h"], ["--help"], []):
        print(USAGE)
        return 0 if arguments else 2
    import comp

    try:
        if arguments[0] == "show" and len(arguments) == 2:
            print(comp.load(arguments[1]))
        elif arguments[0] == "compare" and len(arguments) == 3:
            print(comp.compare(comp.load(arguments[1]), comp.load(arguments[2])) or "the same precisions")
        elif arguments[0] == "doctor" and len(arguments) == 2:
            print(comp.doctor.load(arguments[1]))
        elif arguments[0] == "doctor" and len(arguments) == 3:
            print(comp.doctor.compare(arguments[1], arguments[2]))
        else:
            print(USAGE, file=sys.stderr)
            return 2
    except comp.Error as error:
        print(f"comp: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
