package worker

// Filled returns o with the defaults of its zero fields.
func Filled(o Options) (Options, error) { return o.complete() }
