"""What a workload asks for: lengths, rates, memory, shared prefixes."""
