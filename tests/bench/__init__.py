"""The benchmark: what the front end costs, beside what users would run instead.

`python -m tests.bench` (or `make bench`) runs everything; docs/performance.md
says what each row means. Every figure is a ratio of two things measured in the
same run, interleaved; seconds by themselves are never compared.
"""
