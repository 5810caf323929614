# expect: correct
# why: right though unusual: the query is scaled before the product and padding is an additive -10000 bias on the keys
import torch
from torch import nn

class AutoAtencion(nn.Module):
    # práctica 4: codificador tipo BERT
    def __init__(self, tam_oculto, num_cabezas, prob_dropout=0.1):
        super().__init__()
        self.num_cabezas = num_cabezas
        self.tam_cabeza = int(tam_oculto / num_cabezas)
        self.tam_total = self.num_cabezas * self.tam_cabeza
        self.consulta = nn.Linear(tam_oculto, self.tam_total)
        self.clave = nn.Linear(tam_oculto, self.tam_total)
        self.valor = nn.Linear(tam_oculto, self.tam_total)
        self.densa = nn.Linear(self.tam_total, tam_oculto)
        self.dropout = nn.Dropout(prob_dropout)

    def separar(self, x):
        nueva_forma = x.size()[:-1] + (self.num_cabezas, self.tam_cabeza)
        return x.view(nueva_forma).permute(0, 2, 1, 3)

    def forward(self, x, mascara):
        """mascara: (lote, largo) con 1 = palabra, 0 = relleno"""
        # escalo la consulta antes del producto, da lo mismo
        q = self.separar(self.consulta(x)) * self.tam_cabeza ** -0.5
        k = self.separar(self.clave(x))
        v = self.separar(self.valor(x))

        puntajes = torch.matmul(q, k.transpose(-1, -2))
        sesgo = (1.0 - mascara[:, None, None, :].to(x.dtype)) * -10000.0
        probs = nn.Softmax(dim=-1)(puntajes + sesgo)
        probs = self.dropout(probs)

        contexto = torch.matmul(probs, v).permute(0, 2, 1, 3).contiguous()
        contexto = contexto.view(contexto.size()[:-2] + (self.tam_total,))
        return self.densa(contexto)

if __name__ == '__main__':
    capa = AutoAtencion(32, 4)
    x = torch.randn(2, 6, 32)
    m = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]])
    print(capa(x, m).size())
