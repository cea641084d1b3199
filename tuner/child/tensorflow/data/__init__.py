"""tf.data: the datasets that train, made again with the knobs of a config.

What a dataset is made of, and what of it can be changed; when a loop takes a batch is told in ``..iteration``.
"""
