package sqlite

// Queued is how many operations wait for the writer, apart from the one in its hand.
func (s *Store) Queued() int { return len(s.writer.queue) + len(s.writer.urgent) }
