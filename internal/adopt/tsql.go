package adopt

type tsqlSpeech struct{ pgSpeech }

func (p *Plan) tsql(*Record) {}
