"""The stages of a run, one module each, in the order of `espalier.chain`.

A stage is `run(profile, inputs, output_dir, tracker) -> Manifest`: a plain function that reads
artifact directories, publishes one, and knows nothing of where it runs. What a stage works with is
in the packages below; what depends on the family of tasks, it asks the family.
"""
