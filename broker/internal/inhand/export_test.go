package inhand

// Groups is how many groups a queue keeps.
func Groups[T any](q *Queue[T]) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.groups)
}
