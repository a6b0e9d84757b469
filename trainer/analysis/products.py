"""The matrix products of a compiled step, counted by the dtypes of their operands."""

from collections import Counter

from trainer.analysis.hlo import ARRAY, Computation, Instruction, Program
from trainer.contract.planning.plan import Plan

PRODUCTS = ("convolution", "dot")


def of(text: str, plan: Plan) -> dict[str, int]:
    """Returns operand dtypes -> number of products in one step, with the iterations of loops.

    Products inside kernels, such as attention's, are not seen. Raises ValueError when the text is
    not understood.
    """
    program = Program(text)
    counts: Counter[str] = Counter()
    for name, runs in program.runs.items():
        within = program.computations[name]
        for one in within.values():
            if one.opcode in PRODUCTS:
                counts[_dtypes(one, within)] += runs
    return dict(counts.most_common())


def _dtypes(product: Instruction, within: Computation) -> str:
    """Returns the dtypes of both operands as XLA writes them: `s8`, or `f8e5m2 x f8e4m3fn`."""
    dtypes = [ARRAY.findall(within[name].shape)[0][0] for name in product.operands]
    return " x ".join(dict.fromkeys(dtypes))
