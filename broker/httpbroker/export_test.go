package httpbroker

// Has reports whether a request of that webhook-id waits for its answer.
func (r *Receiver) Has(id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.byID[id] != nil
}

// Waiting is the number of requests that wait for their answer.
func (r *Receiver) Waiting() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.byID {
		n += e.waiters
	}
	return n
}
