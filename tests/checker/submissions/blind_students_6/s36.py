# expect: correct
# why: right though unusual: loops over column slices per head, True in the mask means real
"""Tarea 4: bloque codificador del Transformer (pre-norm), hecho a mano."""
import torch
import torch.nn as nn


class AtencionMultiCabeza(nn.Module):
    """Autoatención bidireccional.

    x       : (lote, largo, d_modelo)
    mascara : (lote, largo) booleana, True = palabra real, False = relleno
    """

    def __init__(self, d_modelo, n_cabezas, abandono=0.1):
        super().__init__()
        if d_modelo % n_cabezas:
            raise ValueError("d_modelo no es múltiplo de n_cabezas")
        self.n_cabezas = n_cabezas
        self.d_cabeza = d_modelo // n_cabezas
        self.consulta = nn.Linear(d_modelo, d_modelo)
        self.clave = nn.Linear(d_modelo, d_modelo)
        self.valor = nn.Linear(d_modelo, d_modelo)
        self.salida = nn.Linear(d_modelo, d_modelo)
        self.abandono = nn.Dropout(abandono)

    def forward(self, x, mascara=None):
        # una cabeza a la vez, cada una usa su tajada de columnas
        Q, K, V = self.consulta(x), self.clave(x), self.valor(x)
        resultados = []
        for c in range(self.n_cabezas):
            tajada = slice(c * self.d_cabeza, (c + 1) * self.d_cabeza)
            q, k, v = Q[..., tajada], K[..., tajada], V[..., tajada]
            puntaje = q.matmul(k.transpose(1, 2)) / (self.d_cabeza ** 0.5)
            if mascara is not None:
                puntaje = puntaje.masked_fill(~mascara.bool().unsqueeze(1), torch.finfo(puntaje.dtype).min)
            peso = self.abandono(puntaje.softmax(dim=2))
            resultados.append(peso.matmul(v))
        return self.salida(torch.cat(resultados, dim=2))


class BloqueCodificador(nn.Module):
    def __init__(self, d_modelo, n_cabezas, d_oculta, abandono=0.1):
        super().__init__()
        self.norma1 = nn.LayerNorm(d_modelo)
        self.atencion = AtencionMultiCabeza(d_modelo, n_cabezas, abandono)
        self.norma2 = nn.LayerNorm(d_modelo)
        self.red = nn.Sequential(
            nn.Linear(d_modelo, d_oculta), nn.GELU(), nn.Dropout(abandono),
            nn.Linear(d_oculta, d_modelo), nn.Dropout(abandono),
        )

    def forward(self, x, mascara=None):
        x = x + self.atencion(self.norma1(x), mascara)
        x = x + self.red(self.norma2(x))
        return x


if __name__ == "__main__":
    bloque = BloqueCodificador(24, 3, 96).eval()
    x = torch.randn(2, 7, 24)
    m = torch.tensor([[1] * 7, [1] * 4 + [0] * 3]).bool()
    print(bloque(x, m).shape)
