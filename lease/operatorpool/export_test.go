package operatorpool

// Format is the state file's format.
type Format[T any] = format[T]
