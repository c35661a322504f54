"""The umbrella command `feddbp`: whole federations on one machine, and a look at those on others."""
