package pgstore

// ConversionSQL is the work of each step of a conversion, for tests that end it
// in the middle.
func (s *Store) ConversionSQL() []string { return []string{s.sql.bound, s.sql.validate, s.sql.swap} }
