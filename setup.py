"""The native sweep, once per instruction set; where it does not compile, the plain one in PyTorch serves."""

import platform
from pathlib import Path

from setuptools import Extension, setup

FOLDER = "src/resolvent/executors/native"
LEVELS = {"_v1": []}
if platform.machine() in ("x86_64", "AMD64"):
    LEVELS |= {"_v3": ["-march=x86-64-v3"], "_v4": ["-march=x86-64-v4", "-mprefer-vector-width=512"]}

FLAGS = ["-std=c++17", "-O3", "-fopenmp", "-fvisibility=hidden", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi"]

setup(
    ext_modules=[
        Extension(
            f"resolvent.executors.native.{name}",
            [f"{FOLDER}/module.cpp"],
            depends=sorted(map(str, Path(FOLDER).glob("*.h"))),
            define_macros=[("INIT", f"PyInit_{name}")],
            extra_compile_args=[*FLAGS, *level],
            extra_link_args=["-fopenmp"],
            py_limited_api=True,
            optional=True,
        )
        for name, level in LEVELS.items()
    ]
)
