"""Demand of a workload: lengths, rates, shared prefixes, hits of prefix caches."""
