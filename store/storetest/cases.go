package storetest

func leaseCases() []Case { return nil }
func laneCases() []Case { return nil }
func readCases() []Case { return nil }
func stragglerCases() []Case { return nil }
func messageCases() []Case { return nil }
func settleCases() []Case { return nil }
func fenceCases() []Case { return nil }
func parkedCases() []Case { return nil }
func dueCases() []Case { return nil }
func requestCases() []Case { return nil }
func adminCases() []Case { return nil }
