package envelope

// RefScheme begins every value of [DataRef].
const RefScheme = "postrider:"
