"""The Python API behind `import feddbp`: run a federation, and watch and control a run."""
