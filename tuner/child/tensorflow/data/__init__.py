"""tf.data: the datasets that train, made again with the knobs of a config."""
