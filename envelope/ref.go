package envelope

// RefScheme begins every value of [DataRef]. A CloudEvent's attribute dataref that
// begins otherwise is another's, and a header dataref.
const RefScheme = "postrider:"
