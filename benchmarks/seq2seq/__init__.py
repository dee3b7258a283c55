"""Encoder-decoder engines: one file each, of the shape of `seq2seq.seq2seq_engine`. They are found by module name."""
