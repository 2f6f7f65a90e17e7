package envelope

// RefScheme is the beginning of every value of [DataRef]. A CloudEvent's attribute dataref
// with another beginning comes from another writer, and is decoded as a header dataref.
const RefScheme = "postrider:"
