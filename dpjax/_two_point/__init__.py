"""Pairs RR_{eps,t} of two outcomes, the worst of pure DP and of bounded range: their sums, walks and moments."""
