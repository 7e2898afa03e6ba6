"""The verb `check`, part by part: counting with a cache, growth against git, reports."""
