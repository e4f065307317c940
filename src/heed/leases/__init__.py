"""Work in numbered parts, leased to workers: this process, others of this machine, or actors of Ray.

The output is the state: what is there and whole is not made again, whoever made it.
"""
