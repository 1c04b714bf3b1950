package tests

// operators are the cases about what operators see (I).
func (s *suite) operators() []testCase {
	return []testCase{}
}
