package registry

// IndexOf is indexOf, for tests.
func IndexOf(text, record string) ([]int, error) { return indexOf(text, record) }
