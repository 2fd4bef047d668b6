package console

// Headline returns the line of a message by which failures are grouped: the one that says what it is about.
func Headline(message string) string { return topic(message) }
