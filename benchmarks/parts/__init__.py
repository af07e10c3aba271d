"""What several benchmarks share, and parts of single ones; nothing here is a benchmark of its own."""
