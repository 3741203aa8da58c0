"""Surfaces of operators, distilled from public measurements, and what they miss by.

    python -m benchmarks.operators FOLDER

reads the parquet files of FOLDER (pip install pyarrow), writes `planners/operators/surfaces/*.npz` and
`docs/operators.md`. The measurements are those of aiconfigurator (`planners/operators/surfaces/NOTICE`).
"""
