"""A small generator on exported tokens: config, net, run, nats, sampling, pictures."""
