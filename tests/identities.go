package tests

// identities are the cases about ids, keys, payloads (D).
func (s *suite) identities() []testCase {
	return []testCase{}
}
