"""The relay of token streams: topics, held messages, replays. It knows neither sockets nor signatures."""
