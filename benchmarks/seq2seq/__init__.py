"""Encoder-decoder engines: one file each, all of the shape of `seq2seq.base`. They are found by module name."""
