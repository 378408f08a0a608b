"""The stages of a run, one module each, in the order of `espalier.chain`.

A stage is `run(profile, inputs, output_dir, tracker) -> Manifest`: a plain function that reads
artifact directories and publishes one, independent of the runner. Its tools are in the packages
below; the family of tasks provides everything that depends on the family.
"""
