# expect: correct
# what: Spanish names, multi-query attention, hand-written softmax, additive mask
# Práctica 4: atención multi-consulta (MQA)
# Todas las cabezas comparten las mismas claves y los mismos valores.
import torch
import torch.nn as nn


def mi_softmax(z):
    z = z - z.max(dim=-1, keepdim=True).values
    e = torch.exp(z)
    return e / e.sum(dim=-1, keepdim=True)


class AtencionMultiConsulta(nn.Module):
    def __init__(self, dim, num_cabezas, prob_apagado=0.0):
        super().__init__()
        self.num_cabezas = num_cabezas
        self.dim_cabeza = dim // num_cabezas
        self.proy_consulta = nn.Linear(dim, dim)
        self.proy_clave = nn.Linear(dim, self.dim_cabeza)
        self.proy_valor = nn.Linear(dim, self.dim_cabeza)
        self.proy_salida = nn.Linear(dim, dim)
        self.apagado = nn.Dropout(prob_apagado)

    def forward(self, x, memoria=None, mascara=None):
        """
        mascara: aditiva, 0 donde se puede mirar y -inf donde no.
                 forma (T, S), (B, 1, 1, S) o (B, 1, T, S)
        """
        if memoria is None:
            memoria = x
        lote, largo, dim = x.shape

        consultas = self.proy_consulta(x).view(lote, largo, self.num_cabezas, self.dim_cabeza)
        consultas = consultas.transpose(1, 2)                   # (B, H, T, d)
        claves = self.proy_clave(memoria).unsqueeze(1)          # (B, 1, S, d)
        valores = self.proy_valor(memoria).unsqueeze(1)

        puntajes = consultas @ claves.transpose(-1, -2)
        puntajes = puntajes / torch.sqrt(torch.tensor(float(self.dim_cabeza)))
        if mascara is not None:
            puntajes = puntajes + mascara
        pesos = self.apagado(mi_softmax(puntajes))

        salida = pesos @ valores
        salida = salida.transpose(1, 2).reshape(lote, largo, dim)
        return self.proy_salida(salida)


if __name__ == "__main__":
    capa = AtencionMultiConsulta(40, 5)
    x = torch.randn(2, 6, 40)
    causal = torch.zeros(6, 6).masked_fill(torch.ones(6, 6).triu(1).bool(), float("-inf"))
    print("sin máscara:", capa(x).shape)
    print("con máscara:", capa(x, mascara=causal).shape)
