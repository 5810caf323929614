# expect: correct
# Tarea 3.5 - Atención causal
# El softmax lo hago a mano con logsumexp (lo vimos en clase de estadística).
import torch
import torch.nn as nn


class AtencionCausal(nn.Module):
    """Atención causal de una sola cabeza.

    longitud_contexto: número máximo de tokens
    Devuelve el vector de contexto y los pesos (antes del dropout) para dibujarlos.
    """

    def __init__(self, longitud_contexto, d_entrada, d_salida, p_dropout=0.0, sesgo=False):
        super().__init__()
        self.d_salida = d_salida
        self.consulta = nn.Linear(d_entrada, d_salida, bias=sesgo)
        self.clave = nn.Linear(d_entrada, d_salida, bias=sesgo)
        self.valor = nn.Linear(d_entrada, d_salida, bias=sesgo)
        self.dropout = nn.Dropout(p_dropout)
        self.register_buffer(
            "mascara", torch.tril(torch.ones(longitud_contexto, longitud_contexto))
        )

    def forward(self, x):
        lote, n_tokens, _ = x.shape
        q, k, v = self.consulta(x), self.clave(x), self.valor(x)

        puntajes = torch.bmm(q, k.transpose(1, 2)) / self.d_salida ** 0.5
        # el futuro se va a -inf, así exp() da cero ahí
        futuro = self.mascara[:n_tokens, :n_tokens] == 0
        puntajes = puntajes.masked_fill(futuro, float("-inf"))
        pesos = torch.exp(puntajes - torch.logsumexp(puntajes, dim=-1, keepdim=True))

        contexto = torch.bmm(self.dropout(pesos), v)
        return contexto, pesos


if __name__ == "__main__":
    torch.manual_seed(42)
    lote = torch.rand(2, 6, 3)
    ac = AtencionCausal(6, 3, 2)
    c, w = ac(lote)
    print(c.shape, w.shape)
    print("suma de filas:", w.sum(-1))
    print(w[0])
